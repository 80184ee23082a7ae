"""Engine: computes start and end of every task from integers alone: tasks, streams, links and speeds, without their meaning."""
