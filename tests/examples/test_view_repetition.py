"""examples/view_repetition.py records every frame as a slow reference does, and its page plays it in a browser."""

from __future__ import annotations

import base64
import io
import json
import math
import re
import sys
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from browser import watch
from imageio_ffmpeg import read_frames
from PIL import Image, ImageSequence
from untrained_runs import ENV, METHODS

from taac_wrappers import KRepWrapper
from taac_wrappers.agent import KRepAgent, load_agent
from taac_wrappers.training.arguments import BadInput, exit_with, parse
from taac_wrappers.training.envs import make_env

FRAMES, SEED = 30, 1
SHORT = {"max_episode_steps": FRAMES}
EVERY_METHOD = pytest.mark.parametrize("method", METHODS)
DARK, LIGHT = 100, 150
"""Grey levels, at most and at least, that no print mistakes for each other."""


@pytest.fixture
def example(examples_on_path: None) -> ModuleType:
    import view_repetition

    return view_repetition


@pytest.fixture
def recording(examples_on_path: None) -> ModuleType:
    import recording

    return recording


@pytest.fixture(scope="module")
def made() -> dict[Any, Any]:
    """Recordings and pages, each of which is made once for all tests."""
    return {}


@pytest.fixture
def recorded(recording: ModuleType, run_of: Any, made: dict[Any, Any]) -> Any:
    """Gives episodes of a method, the first one reset with SEED."""
    from trained_agent import find_agent

    def episodes(method: str, count: int = 1) -> list[Any]:
        if (method, count) not in made:
            trained = find_agent(run_of(method), None, SHORT)
            env, camera = recording.filmed_env(trained)
            made[method, count] = [
                recording.record(trained.agent, env, camera, None if number else SEED) for number in range(count)
            ]
        return deepcopy(made[method, count])

    return episodes


# --- The recording ---------------------------------------------------------------------------------------------------


def slow_q(agent: Any, *inputs: Any) -> np.ndarray:
    """The smaller of the twins' values, of whatever they are given."""
    x = torch.tensor(np.concatenate(inputs)[None].astype(np.float32))
    return np.min([critic(x).detach().numpy()[0] for critic in agent.critics.twins], axis=0)


def slow_opinions(method: str, agent: Any, observation: np.ndarray, prev_action: np.ndarray) -> dict[str, float]:
    """What the agent thinks where it decides, written out."""
    seen: Any = observation[None]
    if method in ("taac", "sac_hybrid"):
        seen = {"observation": observation[None], "prev_action": prev_action[None]}
    answer = agent.act(seen, deterministic=True)
    if method == "taac":
        q_repeat, q_new = slow_q(agent, observation, prev_action), slow_q(agent, observation, answer["action"][0])
        temperature = math.exp(agent.log_switch_temperature.item())
        return {"q_repeat": q_repeat, "q_new": q_new, "beta": 1 / (1 + math.exp((q_repeat - q_new) / temperature))}
    if method == "sac_hybrid":
        q_repeat, q_new = slow_q(agent, observation, prev_action, answer["action"][0])
        logit = agent.actor({key: torch.tensor(value) for key, value in seen.items()})[2].item()
        return {"q_repeat": q_repeat, "q_new": q_new, "beta": 1 / (1 + math.exp(-logit))}
    if method == "sac_krep":
        q = slow_q(agent, observation, answer["action"][0])
        return {"q": max(q), "duration": 1 + list(q).index(max(q))}
    return {"q": slow_q(agent, observation, answer[0])}


def slow_recording(method: str, agent: Any) -> list[SimpleNamespace]:
    """The frames of an episode in the bare environment, one after the other."""
    env, policy, frames = make_env(ENV, env_kwargs=SHORT), agent.policy(), []
    (observation, _), before, done = env.reset(seed=SEED), np.zeros(1, np.float32), False
    while not done:
        is_held = method in ("sac_nrep", "sac_krep") and policy.remaining[0] > 0
        opinions = frames[-1].opinions if is_held else slow_opinions(method, agent, observation, before)
        action = policy(observation)
        if method in ("taac", "sac_hybrid"):
            repeated = not policy.switch[0]
        else:
            repeated = is_held or (len(frames) > 0 and method.startswith("sac") and bool((action == before).all()))
        observation, reward, terminated, truncated, _ = env.step(action)
        frames.append(SimpleNamespace(action=action, reward=reward, repeated=repeated, opinions=opinions))
        before, done = action, terminated or truncated
    return frames


@EVERY_METHOD
def test_every_frame_is_as_in_the_bare_environment(method, run_of, recorded):
    (episode,) = recorded(method)
    frames = slow_recording(method, load_agent(run_of(method) / "agent.safetensors"))
    assert len(frames) == len(episode.opinions) == FRAMES
    np.testing.assert_array_equal(episode.actions, [frame.action for frame in frames])
    np.testing.assert_allclose(episode.rewards, [frame.reward for frame in frames])
    assert episode.repeated == [frame.repeated for frame in frames]
    for mine, frame in zip(episode.opinions, frames, strict=True):
        assert mine == pytest.approx(frame.opinions, rel=1e-4, abs=1e-4)


def test_the_agents_of_these_tests_act_and_repeat(recorded):
    """Else the test above would see one kind of frame only."""
    for method in ("taac", "sac_nrep", "sac_krep"):
        (episode,) = recorded(method)
        assert 0 < sum(episode.repeated) < FRAMES
    assert len({opinions["duration"] for opinions in recorded("sac_krep")[0].opinions}) > 1
    assert not any(recorded("sac")[0].repeated)


class Grey(gym.Env):
    """Its picture's brightness is the number of the frame, times ten."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    observation_space = gym.spaces.Box(0, 100, (1,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, render_mode: str | None = None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        self.frame = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.frame += 1
        return np.array([self.frame], np.float32), 1.0, self.frame == 20, False, {"repeated": True}

    def render(self):
        return np.full((200, 720, 3), 10 * self.frame, np.uint8)


GREY = "Grey-v0"
gym.register(GREY, Grey)


def test_pictures_are_of_what_a_frames_action_was_executed_in(recording):
    """Also of frames for which an action is held; the last one is of the end. They are made small."""
    from trained_agent import TrainedAgent

    def wrap(env: gym.Env) -> gym.Env:
        return KRepWrapper(env, 4)

    env = make_env(GREY, wrap)
    agent = KRepAgent(env.observation_space, env.action_space, hidden=(8,))
    trained = TrainedAgent(agent, "sac_krep", Path("agent.safetensors"), GREY, {}, wrap)
    episode = recording.record(agent, *recording.filmed_env(trained), seed=0)
    pictures = [Image.open(io.BytesIO(picture)) for picture in episode.pictures]
    assert {picture.size for picture in pictures} == {(360, 100)}
    brightness = [np.asarray(picture).mean() for picture in pictures]
    np.testing.assert_allclose(brightness, 10.0 * np.arange(21), atol=3)


def test_what_an_environment_calls_repeated_is_its_own_affair(recording):
    from trained_agent import TrainedAgent

    from taac_wrappers.agent import SACAgent

    env = make_env(GREY)
    agent = SACAgent(env.observation_space, env.action_space, hidden=(8,))
    trained = TrainedAgent(agent, "sac", Path("agent.safetensors"), GREY, {}, lambda env: env)
    episode = recording.record(agent, *recording.filmed_env(trained), seed=0)
    assert episode.repeated == [
        k > 0 and bool((episode.actions[k] == episode.actions[k - 1]).all()) for k in range(len(episode.actions))
    ]
    assert not all(episode.repeated)


# --- The program -----------------------------------------------------------------------------------------------------


def test_it_writes_a_page_and_films(run_of, example, tmp_path, capsys):
    args = example.Args(run_of("taac"), tmp_path / "a" / "view", episodes=2, env_kwargs=SHORT, film="gif")
    assert example.main(args) == 0
    written = sorted(path.name for path in (tmp_path / "a" / "view").iterdir())
    assert written == ["episode_1.gif", "episode_2.gif", "index.html"]
    said = capsys.readouterr().out.splitlines()
    assert re.fullmatch(rf"episode 2: {FRAMES} frames, return -\d+\.\d\d, \d+% repeated", said[1])
    assert said[2] == f"page: {tmp_path / 'a' / 'view' / 'index.html'} (0.1 MB)"


BAD_INPUT = {
    "no agent": (["{tmp}/nothing"], "nothing"),
    "no episodes": (["{run}", "--episodes", "0"], "--episodes must be at least 1, got 0"),
    "a negative seed": (["{run}", "--seed", "-1"], "--seed must not be negative, got -1"),
    "another environment": (["{run}", "--env-id", "MountainCarContinuous-v0"], "does not fit MountainCarContinuous-v0"),
    "no environment": (["{run}", "--env-id", "Nowhere-v0"], "Nowhere"),
    "unknown arguments": (["{run}", "--env-kwargs", '{"wheels": 3}'], "wheels"),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input(name, run_of, example, tmp_path, monkeypatch, capsys):
    words, reason = BAD_INPUT[name]
    words = [word.replace("{run}", str(run_of("taac"))).replace("{tmp}", str(tmp_path)) for word in words]
    assert reason in refused(example, [*words, "-o", str(tmp_path / "view")], monkeypatch, capsys)
    assert not (tmp_path / "view").exists()


@pytest.mark.parametrize("output", ["file", "file/view"])
def test_an_output_that_is_no_folder(output, run_of, example, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("kept")
    words = [str(run_of("taac")), "-o", str(tmp_path / output)]
    assert "file" in refused(example, words, monkeypatch, capsys)
    assert (tmp_path / "file").read_text() == "kept"


def refused(example: ModuleType, words: list[str], monkeypatch: Any, capsys: Any) -> str:
    """What the program says of a command line that it refuses: one line, with exit code 2."""
    monkeypatch.setattr(sys, "argv", ["view_repetition.py", *words])
    with pytest.raises(SystemExit) as exit_:
        exit_with(lambda: example.main(parse(example.Args)))
    said = capsys.readouterr()
    assert exit_.value.code == 2
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    return said.err


def test_what_cannot_be_filmed_is_refused(run_of, example, tmp_path, monkeypatch):
    monkeypatch.setattr("gymnasium.envs.classic_control.PendulumEnv.render", lambda env: 1 / 0)
    with pytest.raises(BadInput, match=f"^{ENV} cannot be filmed: division by zero$"):
        example.main(example.Args(run_of("taac"), tmp_path / "view"))
    assert not (tmp_path / "view").exists()


@pytest.mark.parametrize("kind", ["gif", "mp4"])
def test_films_tell_acting_from_repeating_without_colours(kind, recorded, example, tmp_path):
    (episode,) = recorded("sac_krep")
    example.write_film(tmp_path / f"film.{kind}", episode, fps=30)
    film = frames_of_film(tmp_path / f"film.{kind}")
    assert len(film) == FRAMES + 1
    for now in (0, 7, FRAMES):
        grey = np.asarray(film[now].convert("L"))
        middles = ((np.arange(FRAMES) + 0.5) * grey.shape[1] / FRAMES).astype(int)
        upper, lower = grey[-example.STRIP // 2 + 3, middles], grey[-2, middles]
        played, acts = np.arange(FRAMES) <= now, ~np.array(episode.repeated)
        assert (lower[played & acts] < DARK).all()
        assert (lower[~(played & acts)] > LIGHT).all()
        assert (upper[played & acts] < DARK).all()
        assert (upper[~acts] > 240).all()  # a repeat's bar is not as high


def frames_of_film(path: Path) -> list[Image.Image]:
    if path.suffix == ".gif":
        return [frame.convert("RGB") for frame in ImageSequence.Iterator(Image.open(path))]
    film = read_frames(path)
    size = next(film)["size"]
    return [Image.frombytes("RGB", size, frame) for frame in film]


def test_an_mp4_needs_moviepy(run_of, example, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "moviepy", None)
    with pytest.raises(BadInput, match=r'--film mp4 needs moviepy: pip install "taac-wrappers\[video\]"'):
        example.main(example.Args(run_of("taac"), tmp_path / "view", film="mp4"))
    assert not (tmp_path / "view").exists()


def test_films_of_more_frames_than_pixels(recorded, example):
    """Every act is seen, though others share its pixel."""
    (episode,) = recorded("sac_krep")
    repeated = [frame % 100 != 0 for frame in range(1000)]
    image = example.film_frame(replace(episode, repeated=repeated, pictures=episode.pictures[:1] * 1001), 999)
    row = np.asarray(image.convert("L"))[-example.STRIP // 2 + 3]
    np.testing.assert_array_equal(np.flatnonzero(row < DARK), [int(frame * 0.36) for frame in range(0, 1000, 100)])


# --- The page --------------------------------------------------------------------------------------------------------


@pytest.fixture
def page_of(example: ModuleType, run_of: Any, open_page: Any, made: dict[Any, Any], tmp_path: Path) -> Any:
    """Opens the page of two episodes of a method."""

    def page(method: str) -> Any:
        if method not in made:
            assert example.main(example.Args(run_of(method), tmp_path, episodes=2, seed=SEED, env_kwargs=SHORT)) == 0
            made[method] = (tmp_path / "index.html").read_bytes()
        (tmp_path / "page.html").write_bytes(made[method])
        return open_page(tmp_path / "page.html")

    return page


def assert_shows(page: Any, episode: Any, frame: int) -> None:
    assert page.input_value("#slider") == str(frame)
    assert page.inner_text("#frame") == f"frame {frame} of {FRAMES}"
    encoded = base64.b64encode(episode.pictures[frame]).decode()
    assert page.get_attribute("#picture", "src") == f"data:image/webp;base64,{encoded}"
    assert page.evaluate("picture.decode().then(() => picture.naturalWidth)") == 360  # it is a picture
    if frame < FRAMES:
        said = "It repeats its action." if episode.repeated[frame] else "It acts anew."
        assert page.inner_text("#decision") == said
        assert float(values(page)["a[0]"]) == pytest.approx(episode.actions[frame][0], rel=1e-3)


def values(page: Any) -> dict[str, str]:
    """What is plotted, by name, and its value at the present frame."""
    labels = [entry.rsplit(" = ", 1) for entry in page.locator("#panels .label > span:not(.bounds)").all_inner_texts()]
    return {name.strip(): value for name, value in labels}


def test_the_page_begins_with_the_first_frame(page_of, recorded):
    page, (episode,) = page_of("taac"), recorded("taac")
    assert page.title() == page.inner_text("h1") == f"TAACAgent in {ENV}"
    assert_shows(page, episode, 0)
    assert page.locator("#timeline rect.repeat").count() == sum(episode.repeated)
    assert page.locator("#timeline rect.act").count() == FRAMES - sum(episode.repeated)


def test_the_slider_moves_the_frame(page_of, recorded):
    page, (episode,) = page_of("taac"), recorded("taac")
    page.click("#slider")  # in its middle
    assert_shows(page, episode, FRAMES // 2)
    page.keyboard.press("ArrowRight")  # which the slider itself would understand, too
    assert_shows(page, episode, FRAMES // 2 + 1)


def test_a_click_on_a_plot_moves_the_frame(page_of, recorded):
    page, (episode,) = page_of("taac"), recorded("taac")
    width = page.locator("#timeline svg").bounding_box()["width"]
    for frame, plot in ((4, page.locator("#timeline svg")), (20, page.locator("#panels svg.plot").last)):
        plot.click(position={"x": (frame + 0.5) * width / (FRAMES + 1), "y": 10})
        assert_shows(page, episode, frame)


def test_arrows_move_by_one_frame_and_stop_at_both_ends(page_of, recorded):
    page, (episode,) = page_of("taac"), recorded("taac")
    for key, frame in (("ArrowLeft", 0), ("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1)):
        page.keyboard.press(key)
        assert_shows(page, episode, frame)
    for _ in range(FRAMES + 5):
        page.keyboard.press("ArrowRight")
    assert_shows(page, episode, FRAMES)
    assert page.inner_text("#decision") == "The episode has ended."
    assert set(values(page).values()) == {"–"}


@pytest.mark.parametrize("toggle", ["space", "button"])
def test_it_plays_and_pauses(toggle, page_of, recorded):
    page, (episode,) = page_of("taac"), recorded("taac")

    def play_or_pause() -> None:
        page.keyboard.press("Space") if toggle == "space" else page.click("#play")

    play_or_pause()
    page.wait_for_function("slider.value >= 3")
    assert page.inner_text("#play") == "Pause"
    play_or_pause()
    paused_at = int(page.input_value("#slider"))
    page.wait_for_timeout(200)  # six frames
    assert 3 <= paused_at < FRAMES
    assert_shows(page, episode, paused_at)

    play_or_pause()
    page.wait_for_function("play.textContent === 'Play'")  # it stops by itself
    assert_shows(page, episode, FRAMES)
    play_or_pause()
    page.wait_for_function(f"slider.value < {FRAMES}")  # from the start


def test_the_picker_shows_another_episode(page_of, recorded):
    page, episodes = page_of("taac"), recorded("taac", 2)
    assert not np.array_equal(episodes[0].rewards, episodes[1].rewards)
    page.keyboard.press("ArrowRight")
    page.focus("#picker")  # as a hand does
    page.select_option("#picker", index=1)
    assert_shows(page, episodes[1], 0)
    assert page.locator("#timeline rect.repeat").count() == sum(episodes[1].repeated)
    page.keyboard.press("ArrowRight")  # moves the frame, not the picker
    assert_shows(page, episodes[1], 1)
    page.select_option("#picker", index=0)
    assert_shows(page, episodes[0], 0)


PLOTTED = {
    "taac": {"repeat: Q(s, a_prev)": "q_repeat", "act: Q(s, â)": "q_new", "β": "beta"},
    "sac_hybrid": {"repeat: Q(s, a_prev)": "q_repeat", "act: Q(s, â)": "q_new", "β": "beta"},
    "sac_krep": {"Q(s, a)": "q", "K": "duration"},
}


@EVERY_METHOD
def test_it_plots_what_the_method_has(method, page_of, recorded):
    page, (episode,) = page_of(method), recorded(method)
    plotted = PLOTTED.get(method, {"Q(s, a)": "q"})
    for frame in (0, 1, 2):
        shown = values(page)
        assert shown.keys() == {*plotted, "a[0]"}
        for name, opinion in plotted.items():
            assert float(shown[name]) == pytest.approx(episode.opinions[frame][opinion], rel=1e-3, abs=1e-9)
        page.keyboard.press("ArrowRight")


def test_a_line_goes_through_its_values(page_of, recorded):
    """The action's goes from -1, at 95 from above, to 1, at 5."""
    page, (episode,) = page_of("taac"), recorded("taac")
    path = page.locator("#panels svg.plot path").last.get_attribute("d")
    heights = [float(height) for height in re.findall(r"[,V]([-\d.e]+)", path)]
    np.testing.assert_allclose(heights, [50 - 45 * action[0] for action in episode.actions], rtol=1e-3)


def test_names_and_missing_numbers_do_not_break_the_page(recorded, run_of, example, open_page, tmp_path):
    from trained_agent import find_agent

    (episode,) = recorded("sac")
    episode.opinions[1] = {"q": math.nan}
    strange = "</script><script>boom()</script>"
    trained = replace(find_agent(run_of("sac"), None, None), env_id=strange)
    (tmp_path / "page.html").write_text(example.html(trained, [episode], fps=30), encoding="utf-8")
    page = open_page(tmp_path / "page.html")
    assert page.title() == f"SACAgent in {strange}"
    page.keyboard.press("ArrowRight")
    assert values(page)["Q(s, a)"] == "–"
    assert page.locator("#panels path").first.get_attribute("d").count("M") == 2  # a gap


def test_faults_of_pages_are_noticed(browser, tmp_path):
    """By the fixture that all tests of pages rely on."""
    (tmp_path / "bad.html").write_text(
        "<script>console.error('complaint')</script><script>boom()</script><img src='http://localhost:9/picture.png'>"
    )
    page, faults = browser.new_page(), list[str]()
    watch(page, faults)
    page.goto((tmp_path / "bad.html").as_uri())
    page.close()
    told = json.dumps(faults)
    assert all(fault in told for fault in ("said: complaint", "boom is not defined", "http://localhost:9/picture.png"))
