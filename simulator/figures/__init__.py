"""Figures of runs, schedules and clusters: Gantt charts, traces and pictures of topologies."""
