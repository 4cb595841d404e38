"""The guards of those who call: workers and coordinators."""

from __future__ import annotations

from tests.fault.mutants.mutation import Edit, Mutation

MUTATIONS = (
    Mutation(
        "intent_before_effect",
        "worker",
        "tools are called only once the intents are committed",
        ("I13",),
        (
            Edit(
                "services.worker.model_step",
                "        await self._watch.answered()\n",
                "        from services.worker.tools_client import CallLimits\n"
                "        limits = CallLimits(30.0)\n"
                "        for _, intent in answer_entries(step, attempt, answer)[1:]:\n"
                "            tools, token = self._dependencies.tools, self._held_task.token\n"
                "            await tools.execute(token, intent, lambda: None, limits, None)\n"
                "        await self._watch.answered()\n",
            ),
        ),
    ),
    Mutation(
        "session_end_is_conditional",
        "coordinator",
        "a session is ended only by the replica it is still attached to",
        (),
        (
            Edit(
                "services.coordinator.lease_store.session_keys",
                "self._etcd.delete(key, only_if=(modified_at(key, held.mod_revision),))",
                "self._etcd.delete(key)",
            ),
        ),
    ),
)
