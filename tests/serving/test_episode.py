"""An episode's gains add up to its best, what is no verdict changes nothing, and who cannot connect is told at once."""

import socket
import subprocess
import sys

import pytest
from served import serving

from cudal2.serving import client
from cudal2.serving.client import ADDRESS, Episode, NoService, connect

PROBLEM = "64_128_256"


@pytest.mark.parametrize(
    "texts",
    [["hgemm(){} slow", "hgemm(){} fast fast", "hgemm(){} fast"], ["?", "hgemm(){} bug", "hgemm(){}"], ["?", "?"]],
)
def test_gains_add_up_to_the_best_reward(tmp_path, texts):
    with serving(tmp_path) as up:
        episode = Episode(up.client(), PROBLEM, "me")
        found = [episode.submit(text) for text in texts]
        samples = sorted(up.archive.samples("serve"), key=lambda one: one.origin.step)
    assert sum(gain for _, gain in found) == pytest.approx(episode.best) == max(judged.reward for judged, _ in found)
    assert found[0][1] == found[0][0].reward and all(gain >= 0 for _, gain in found[1:])
    assert [(one.origin.turn, one.origin.policy) for one in samples] == [(n, "me") for n in range(len(texts))]
    assert {one.origin.prompt for one in samples} == {episode.prompt.text}


def test_what_is_no_verdict_leaves_the_episode_as_it_was(tmp_path):
    with serving(tmp_path, "limits.body_bytes=20000") as up:
        episode = Episode(up.client(), PROBLEM, "me")
        episode.submit("hgemm(){} slow")
        before = episode.best, episode.turns
        with pytest.raises(NoService, match="Plug it in"):
            episode.submit("hgemm(){} fault")
        with pytest.raises(ValueError, match=r"limits\.body_bytes=20000"):
            episode.submit("x" * 10_000_000)
        assert (episode.best, episode.turns) == before
        assert episode.submit("hgemm(){} fast")[1] > 0
    with pytest.raises(NoService, match="nothing answers"):
        episode.submit("hgemm(){}")


def test_who_cannot_connect_is_told_at_once(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv(ADDRESS, url)
    with pytest.raises(NoService, match=f"Start `cudal2 serve` there.*{ADDRESS}={url}"):
        connect()
    monkeypatch.setenv(ADDRESS, "here")
    with pytest.raises(ValueError, match="is no address"):
        connect()
    with serving(tmp_path, token="secret") as up:
        monkeypatch.setenv(ADDRESS, up.server.url)
        with pytest.raises(NoService, match="CUDAL2_TOKEN"):
            connect()
        monkeypatch.setenv("CUDAL2_TOKEN", "secret")
        assert connect().prompt(PROBLEM).problem == "64_128_256_tn_f32"
        with pytest.raises(ValueError, match="M_N_K"):
            Episode(connect(), "64_128", "me")
        monkeypatch.setattr(client, "VERSION", 2)
        with pytest.raises(NoService, match=r"speaks schema 1, and this client 2\. Install the same version"):
            connect()


def test_a_server_that_says_nothing_is_given_up_and_takes_nothing(tmp_path):
    with serving(tmp_path) as up:
        episode = Episode(up.client(seconds=0.3), PROBLEM, "me")
        up.pool.open.clear()
        with pytest.raises(NoService, match=r"no answer in 0\.3 s.*what was judged is recalled"):
            episode.submit("hgemm(){} fast")
        assert (episode.best, episode.turns) == (None, 0)
        up.pool.open.set()
        episode.client.seconds = 20
        assert episode.submit("hgemm(){} fast")[1] > 0 and up.pool.judged == ["hgemm(){} fast\n"]


def test_without_openenv_its_door_says_what_to_install():
    said = "import sys; sys.modules['openenv'] = None; import cudal2.serving.openenv"
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, timeout=60)
    assert 'pip install "cudal2[openenv]"' in done.stderr.splitlines()[-1]


def test_it_needs_neither_torch_nor_trl():
    names = "torch", "trl", "msgspec", "datasets"
    said = f"import sys; import cudal2.serving.trl; sys.exit(any(name in sys.modules for name in {names}))"
    assert subprocess.run([sys.executable, "-c", said], timeout=60).returncode == 0
