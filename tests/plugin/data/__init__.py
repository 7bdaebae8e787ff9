"""Files of earlier versions, which every later version must load; `write` makes the current one."""
