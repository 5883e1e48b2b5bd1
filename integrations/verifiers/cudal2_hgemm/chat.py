"""One call of the model for each turn, in this process.

The default harness starts an interpreter for each turn. Where the model and the judge share a machine, that would take
processors from the kernels that are being timed.
"""

import httpx
import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire


class HgemmHarnessConfig(vf.HarnessConfig):
    id: str = "cudal2_hgemm"
    answer_seconds: float = 1800.0
    """How long the model may take for one answer."""


class HgemmHarness(vf.Harness[HgemmHarnessConfig]):
    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data) -> vf.ProgramResult:
        """Asks for the next answer; verifiers listens at `endpoint`, passes it on, and records it in the trace."""
        system, prompt = self.resolve_prompt(data)
        said = [{"role": "system", "content": system}] if system else []
        said += [message_to_wire(one) for one in prompt] if isinstance(prompt, list) else [_user(prompt)]
        seconds = self.config.answer_seconds
        # The endpoint is on this machine's loopback: neither certificates nor a proxy have a part in it.
        async with httpx.AsyncClient(timeout=seconds, verify=False, trust_env=False) as client:
            try:
                answer = await client.post(
                    f"{endpoint}/chat/completions",
                    json={"model": ctx.model, "messages": said},
                    headers={"Authorization": f"Bearer {secret}"},
                )
            except httpx.TimeoutException as error:
                remedy = "Is its server alive? Else allow more: --env.agent.harness.answer-seconds"
                late = f"the model {ctx.model} gave no answer in {seconds:g} s. {remedy}"
                raise vf.ProviderError(late, status_code=504) from error
        return vf.ProgramResult(exit_code=int(not answer.is_success), stdout="", stderr=answer.text)


def _user(text: str | None) -> dict[str, str]:
    return {"role": "user", "content": text or ""}
