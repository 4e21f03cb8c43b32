"""Observers: they hear what goes on, and never steer."""
