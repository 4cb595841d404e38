"""Control work: functions of backends' own, run like agents, without a model."""
