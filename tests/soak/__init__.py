"""Long loops: deaths and restarts, many sessions. Short forms always run, the long ones with `-m soak`."""
