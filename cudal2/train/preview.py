"""The prompt that the next step of a run would send, to be read beforehand."""

import tempfile
from contextlib import ExitStack
from pathlib import Path

from cudal2.archive import Archive
from cudal2.config import TrainConfig
from cudal2.policy import model, sampling
from cudal2.policy.locate import latest_checkpoint, step_of
from cudal2.problem import Problem
from cudal2.train.judge import Judge
from cudal2.worker.pool.pool import Pool


def preview(config: TrainConfig, problem: Problem) -> tuple[str, str]:
    """The text that the policy would read, chat template included, and a sentence that states its length.

    It shows kernels from the run's archive, if there is one; nothing is trained or judged. Raises as training does:
    ValueError where the configuration cannot work, HarnessFault where the device is missing.
    """
    folder = Path(config.run)
    with ExitStack() as stack:
        place = folder
        if not Archive.file(folder).exists():
            place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        archive = stack.enter_context(Archive.of(place))
        pool = stack.enter_context(Pool(config.worker, config.target))
        step = step_of(latest_checkpoint(folder)) // config.trainer.iterations + 1
        prompt = Judge(config, pool, archive).prompt(problem, step)
    tokenizer, found = model.without_weights(config.policy, config.target)
    model.check(tokenizer, config.target)
    text, size = sampling.whole_text(tokenizer, prompt), len(sampling.tokenize(tokenizer, prompt))
    most = sampling.context(found, config.policy)
    length = f"step {step}: {len(text.encode()):,} bytes, {size:,} tokens"
    return text, length if most is None else f"{length} of the {most:,} that the policy reads at once"
