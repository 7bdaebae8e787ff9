"""Files of earlier versions, which every later version has to load; `write` makes that of the current one."""
