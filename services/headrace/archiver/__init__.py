"""The archiver: the second reader of the frames, which keeps the log as numbered files in object storage."""
