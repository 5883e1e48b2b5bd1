"""One episode: the model answers, is told the verdict, and may try again."""

import verifiers.v1 as vf
from pydantic import Field

from cudal2_hgemm.chat import HgemmHarnessConfig


class HgemmEnvConfig(vf.EnvConfig):
    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig(), harness=HgemmHarnessConfig())
    """The model. Nothing of it runs in the runtime, and the default one is a cloud: so it is this machine."""
    turns: int = Field(2, ge=1)
    """How many answers a model may give to one problem."""


class HgemmEnv(vf.Env[HgemmEnvConfig]):
    async def run(self, task, agents) -> None:
        """An error of the model's server or of the judge ends the episode; it is on the trace and is no reward."""
        async with agents.agent.interaction(task) as chat:
            segment = await chat.turn()
            for turn in range(1, self.config.turns + 1):
                if segment.terminated:
                    return
                attempt = await task.judge(chat.trace, segment.last_reply)
                if turn < self.config.turns:
                    segment = await chat.turn(attempt.message)
