"""Long loops: deaths and restarts, many sessions. Short forms run always, the long ones with `-m soak`."""
