"""The archiver: the second reader of the frames, which keeps the log as numbered files in object
storage.
"""

# Before anything else loads pyarrow.
from headrace.archiver import pyarrow_memory as pyarrow_memory
