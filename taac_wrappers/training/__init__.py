"""What trains an agent: tasks and their settings, environments, replay, evaluation, tracking, checkpoints, metrics.

Nothing is imported here, so that each part costs only what it needs: ``tasks``, ``envs``, ``evaluation`` and
``metrics`` work without torch.
"""
