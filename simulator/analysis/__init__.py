"""What a timeline, simulated or recorded, says: metrics, critical path, passes, memory over time and confidence."""
