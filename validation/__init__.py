"""Real jobs, an emulated cluster and measured tables: predicted against measured."""
