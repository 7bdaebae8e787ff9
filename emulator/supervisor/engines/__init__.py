"""Devices and the engines of their virtual functions: announcements, watchdog, resets, bans."""
