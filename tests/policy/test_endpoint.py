"""A model elsewhere is asked as configured, each answer is kept at once, and what goes wrong is one line."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from fake_endpoint import kernel, serving

from cudal2 import cli
from cudal2.completion import CUT_OFF, CUT_OFF_THINKING, EMPTY, LONGEST, NO_BLOCK
from cudal2.config import EndpointConfig, PolicyConfig, PromptConfig, SearchConfig, TrainConfig, load
from cudal2.policy.endpoint import Endpoint, answers, check, reading, spent, told
from cudal2.policy.turns import Attempt
from cudal2.problem import Problem
from cudal2.records import Environment, HarnessFault, Status, Verdict
from cudal2.target import find

PROMPT = [{"role": "user", "content": "Write a kernel."}]
INSTRUCT = PromptConfig(template="instruct")
NO_SUCH = "http://127.0.0.1:9/v1"


def policy(url: str, **values) -> PolicyConfig:
    chosen = {"at_once": 1, "retries": 0, "patience": 20.0} | values.pop("endpoint", {})
    return PolicyConfig(path="fake", sampler="endpoint", endpoint=EndpointConfig(url=url, **chosen), **values)


def write(folder: Path, url: str, count: int = 1, finished=lambda place, found: None, **values):
    config = policy(url, **values)
    check(config, INSTRUCT)
    return Endpoint(config, find("cpu"), folder).write(count * [PROMPT], list(map(str, range(count))), 0, finished)


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_is_read_however_it_is_sent(tmp_path, stream):
    with serving("kernel", "thinks", "thinks_content", "talks") as (url, model):
        found = write(tmp_path, url, 4, endpoint={"stream": stream})
    assert [one.source for one in found] == [kernel(0), kernel(1), kernel(2), ""]
    assert found[3].missing == NO_BLOCK and {one.get("stream", False) for one in model.asked} == {stream}
    (total,) = spent(tmp_path)
    assert total.seconds > 0
    assert msgspec.structs.replace(total, seconds=0.0) == answers.Spent("fake", 4, 1, 400, 80, 20)
    assert "4 answers (1 without a kernel), 400 tokens read, 80 written (20 of them thought)" in told([total])


def test_only_what_was_set_is_sent_and_each_sample_has_a_seed(tmp_path):
    with serving() as (url, model):
        write(tmp_path / "a", url, 3, max_new_tokens=77)
        set_ = {"temperature": 0.5, "top_p": 0.9, "top_k": 20}
        write(tmp_path / "b", url, **set_, endpoint={"effort": "high", "seeded": False})
    plain, full = model.asked[0], model.asked[3]
    assert {"temperature", "top_p", "top_k", "reasoning_effort", "max_tokens", "n"}.isdisjoint(plain)
    assert (plain["model"], plain["messages"], plain["max_completion_tokens"]) == ("fake", PROMPT, 77)
    assert len({one["seed"] for one in model.asked[:3]}) == 3 and "seed" not in full
    assert {name: full[name] for name in set_} == set_ and full["reasoning_effort"] == "high"


def test_a_key_is_sent_where_it_is_named_and_kept_nowhere(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "another-servers")
    monkeypatch.setenv("MY_KEY", "secret-123")
    with serving() as (url, model):
        write(tmp_path, url, 1)
        write(tmp_path, url, 2, endpoint={"key": "MY_KEY"})
    assert model.keys == [None, "Bearer secret-123"]
    assert not [file for file in tmp_path.rglob("*") if b"secret-123" in file.read_bytes()]
    with serving("wrong_key") as (url, _), pytest.raises(ValueError, match=r"\$MY_KEY does not fit") as caught:
        write(tmp_path, url, 3, endpoint={"key": "MY_KEY"})
    assert "secret-123" not in str(caught.value), "a server may repeat it"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"key": "sk-123456"}, "name of an environment variable"),
        ({"url": "http://me:sk-123456@host/v1"}, r"policy\.endpoint\.key=NAME"),
        ({"url": "https://host/v1?key=sk-123456"}, r"policy\.endpoint\.key=NAME"),
        ({"url": ""}, r"policy\.endpoint\.url=http"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anything_is_made_and_no_key_is_shown(values, said):
    with pytest.raises(ValueError, match=said) as caught:
        check(policy(NO_SUCH, endpoint=values) if "url" not in values else policy(**values), INSTRUCT)
    assert "sk-123456" not in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="prompt=instruct"):
        check(policy(NO_SUCH), PromptConfig())


@pytest.mark.parametrize(
    ("behaviour", "missing"),
    [("only_thinks", CUT_OFF_THINKING), ("cut", CUT_OFF), ("refuses", reading.REFUSED), ("endless", reading.TOO_LONG)],
)
def test_why_an_answer_has_no_kernel_is_said(tmp_path, behaviour, missing):
    with serving(behaviour) as (url, model):
        for _ in range(2):
            (one,) = write(tmp_path, url)
            assert (one.source, one.missing) == ("", missing)
    assert len(model.asked) == 1, "it was paid for, too"


def test_what_is_cut_off_by_its_length_is_never_just_empty():
    for content, reasoned in (("", ""), ("Let me see.", ""), ("", "Hm"), (" ", "</think>")):
        one = reading.found(reading.Answer(name="", model="", content=content, reasoning=reasoned, finish="length"))
        assert one.missing in (CUT_OFF, CUT_OFF_THINKING)
    assert reading.found(reading.Answer(name="", model="")).missing == EMPTY


def test_of_an_answer_of_ten_megabytes_the_end_is_read_and_kept(tmp_path):
    with serving("long") as (url, _):
        (one,) = write(tmp_path, url)
    assert one.source == kernel(0)
    assert (tmp_path / answers.FILE).stat().st_size < 2 * LONGEST


TROUBLES = [
    ("wrong_key", ValueError, r"401.*policy\.endpoint\.key=NAME"),
    ("no_model", ValueError, r"404.*policy\.path=fake"),
    ("too_large", ValueError, r"maximum context length.*policy\.max_new_tokens"),
    ("busy", HarnessFault, r"429.*policy\.endpoint\.at_once"),
    ("broken", HarnessFault, r"500.*Look after the server"),
    ("dies", HarnessFault, r"broke off in the middle"),
    ("html", HarnessFault, r"OpenAI-compatible API.*/v1"),
    ("no_kernel_json", HarnessFault, r"no answer in what it sent"),
    ("error_event", HarnessFault, r"the GPU is gone"),
    ("silent", HarnessFault, r"nothing came.*policy\.endpoint\.patience"),
]


@pytest.mark.parametrize(("behaviour", "kind", "said"), TROUBLES, ids=[one[0] for one in TROUBLES])
def test_what_goes_wrong_is_one_line_and_the_same_command_goes_on(tmp_path, behaviour, kind, said):
    patience = {"patience": 0.5} if behaviour == "silent" else {}
    told_of = []
    with serving("kernel", "kernel", behaviour) as (url, model):
        with pytest.raises(kind, match=said) as caught:
            write(tmp_path, url, 5, lambda place, found: told_of.append(place), endpoint=patience)
        assert "\n" not in str(caught.value) and "is kept" in str(caught.value)
        assert told_of == [0, 1] and len(model.asked) == 3, "after a failure nothing more is asked for"
    with serving() as (url, model):
        assert all(one.source for one in write(tmp_path, url, 5)) and len(model.asked) == 3


def test_without_a_server_that_is_said(tmp_path):
    with pytest.raises(HarnessFault, match=r"nobody answers at http://127\.0\.0\.1:9/v1 .*Start the server"):
        write(tmp_path, NO_SUCH)
    assert not list(tmp_path.iterdir())


def test_a_refusal_that_passes_is_waited_for(tmp_path):
    with serving("busy", "broken", "kernel") as (url, model):
        assert write(tmp_path, url, endpoint={"retries": 3})[0].source == kernel(2)
    assert len(model.asked) == 3


def test_many_are_asked_at_once_and_no_answer_is_lost_or_doubled(tmp_path):
    finished: dict[int, str] = {}
    with serving() as (url, model):
        model.delay = 0.02
        found = write(tmp_path, url, 40, lambda i, one: finished.update({i: one.source}), endpoint={"at_once": 16})
    assert len(model.asked) == 40 == len({one.source for one in found})
    assert finished == {place: one.source for place, one in enumerate(found)}
    with serving("broken") as (url, model):
        assert write(tmp_path, url, 40, endpoint={"at_once": 16}) == found and not model.asked


@pytest.mark.parametrize(("limit", "count"), [({"requests": 3}, 3), ({"tokens": 300}, 3), ({"tokens": 241}, 3)])
def test_limits_count_all_that_the_run_has_had(tmp_path, limit, count):
    with serving() as (url, model):
        write(tmp_path, url, 1)
        with pytest.raises(ValueError, match=rf"policy\.endpoint\.{next(iter(limit))}=\d+ are used up"):
            write(tmp_path, url, 9, endpoint={**limit, "at_once": 4 if "requests" in limit else 1})
        assert len(model.asked) == count
        assert len(write(tmp_path, url, 3, endpoint=limit)) == 3, "what is there costs nothing"


def test_what_a_kill_left_of_a_line_spoils_no_other(tmp_path):
    with serving() as (url, model):
        write(tmp_path, url, 2)
        file = tmp_path / answers.FILE
        file.write_bytes(file.read_bytes()[:-30])
        assert all(one.source for one in write(tmp_path, url, 3))
        assert len(model.asked) == 4
        write(tmp_path, url, 3)
        assert len(model.asked) == 4


def test_turns_leave_out_the_oldest_attempts_where_the_model_reads_less(tmp_path):
    cpu, here = find("cpu"), Environment("", 0, "", "", "", "")
    bad = Verdict("", Problem(64, 64, 64), "cpu", Status.WRONG, here)
    tried = [Attempt(f"int number{i}; " + 300 * "x", bad) for i in range(4)]
    shown = {}
    for context in (0, 400, 600):
        config = policy(NO_SUCH, endpoint={"context": context}, max_new_tokens=100)
        shown[context] = Endpoint(config, cpu, tmp_path).fits(PROMPT, tried).prompt
    assert len(shown[0]) == 9 and 1 < len(shown[400]) < len(shown[600]) < 9
    assert "number3" in str(shown[400]) and "number0" not in str(shown[400])


def test_a_model_elsewhere_is_not_trained():
    chosen = ["policy=endpoint", "policy.path=x", "prompt=instruct"]
    assert load("search", chosen, SearchConfig).policy.chat
    with pytest.raises(ValueError, match="weights are elsewhere"):
        load("train", [*chosen, "run=x"], TrainConfig).policy.check_here()
    assert cli.main(["train", *chosen, "run=/nonexistent/run"]) == 2
    assert cli.main(["sft", *chosen, "run=/nonexistent/run"]) == 2


@pytest.mark.slow
def test_its_package_is_imported_only_where_it_is_used():
    program = (
        "import sys; import cudal2.cli, cudal2.search.proposers.policy, cudal2.evaluation.run, cudal2.report.page; "
        "assert 'openai' not in sys.modules; sys.modules['openai'] = None; from cudal2 import cli; "
        f"sys.exit(cli.main(['search', 'shapes=64_64_64', 'run=/nonexistent/run', 'search.method=policy', "
        f"'search.prior=none', 'search.neighbours=0', 'policy=endpoint', 'policy.path=x', "
        f"'policy.endpoint.url={NO_SUCH}', 'prompt=instruct']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=os.environ)
    assert done.returncode == 2 and 'pip install "cudal2[endpoint]"' in done.stderr and done.stderr.count("\n") == 1
