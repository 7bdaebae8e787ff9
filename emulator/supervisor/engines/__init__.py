"""Devices and the engines of their virtual functions: what each is told, its watchdog, resets, bans."""
