"""The shim: runs a plain script on several processes with the numbers of one."""
