"""Facts of this machine, read from /proc, /sys and NVML without importing torch: frozen values and readers.

Every reader takes the root of the file system, so that tests hand it their own tree, and answers with less
rather than failing where a file is absent (containers, other platforms).
"""
