"""The archiver: the second confirmer of frames, which stores the log as numbered files."""

# Before anything else loads pyarrow.
from headrace.archiver import pyarrow_memory as pyarrow_memory
