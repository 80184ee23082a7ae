"""Schedules by themselves: what they are defined to be, what public generators give, what papers print."""
