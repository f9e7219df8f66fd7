"""Backup: a copy of the state directory and the log of a broker, which runs or not, and the way back.

    layout.py      the files of a broker that a backup has, and their names there
    manifest.py    the list of files with sizes and checksums, written last
    file_copy.py   one file: hard link, shared blocks or copy
    log_tail.py    the end of a log as the next start finds it
    creation.py    the order in which a backup is made
    restore.py     verification, and the copy into empty directories

Never changes a file of the broker. Rings are memory, and not part of a backup.
"""
