"""The interactive sphere computes what the package computes, and each of its states can be reached."""

import math

import pytest
import runner
import torch
from browser import chromium

import companion
from companion.examples import sphere_layer


@pytest.fixture(scope="module")
def page():
    with chromium() as browser:
        page = browser.new_page()
        page.add_script_tag(path=runner.ROOT / "book" / "_static" / "sphere.js")
        yield page


def settings(gap=0.8, angle=0.0, heads=1, temperature=2.0, causal=False):
    return {"gap": gap, "angle": angle, "heads": heads, "temperature": temperature, "causal": causal}


def layer(chosen):
    mask = "causal" if chosen["causal"] else "full"
    return sphere_layer(chosen["gap"], chosen["angle"], chosen["heads"], chosen["temperature"], mask)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [1, 2, 3, 4])
@pytest.mark.parametrize("angle", [0.0, 0.7, 2.0])
def test_a_layer_in_the_browser_is_the_packages_map(page, angle, heads, causal):
    for i, (gap, temperature) in enumerate([(0.05, 0.1), (0.8, 1.0), (2.0, 10.0)]):
        chosen = settings(gap, angle, heads, temperature, causal)
        x = torch.randn(8, 3, generator=torch.Generator().manual_seed(i), dtype=torch.float64)
        x = x / x.norm(dim=-1, keepdim=True)
        found = page.evaluate("([x, s]) => companionSphere.step(x, s)", [x.tolist(), chosen])
        torch.testing.assert_close(
            torch.tensor(found, dtype=torch.float64), companion.power_step(x, layer(chosen)), atol=1e-12, rtol=0
        )


def test_the_layers_gap_and_angle_are_what_the_controls_say():
    for gap, angle in [(0.3, 0.0), (1.5, 0.0), (0.3, 0.7), (1.5, 2.0)]:
        found = companion.spectrum(sphere_layer(gap, angle, 3).F)
        assert math.isclose(found.gap, gap, abs_tol=1e-12)
        assert math.isclose(companion.rotation_angle(complex(found.eigenvalues[0])), angle, abs_tol=1e-12)


@pytest.mark.parametrize(
    ("chosen", "layers", "state"),
    [
        (settings(), 300, "consensus"),
        (settings(angle=0.7), 300, "consensus, turning: a limit cycle"),
        (settings(gap=1.6, temperature=0.1), 300, "two opposite camps"),
        (settings(), 1, "tokens still apart"),
    ],
)
def test_each_state_is_reached_from_some_start(page, chosen, layers, state):
    """And words describe it: checked against the tokens themselves."""
    ends = []
    for seed in range(20):
        tokens, words = page.evaluate(
            """([seed, settings, layers]) => {
                let tokens = companionSphere.start(seed);
                for (let i = 0; i < layers; i++) tokens = companionSphere.step(tokens, settings);
                return [tokens, companionSphere.describe(tokens, settings)];
            }""",
            [seed, chosen, layers],
        )
        x = torch.tensor(tokens, dtype=torch.float64)
        assert math.isclose(words["mean"], float(companion.consensus(x)), abs_tol=1e-9)
        ends.append(words["state"])
    assert state in ends


def test_starts_are_on_the_sphere_and_differ(page):
    first, again, second = (torch.tensor(page.evaluate(f"companionSphere.start({seed})")) for seed in (1, 1, 2))
    torch.testing.assert_close(first.norm(dim=-1), torch.ones(8))
    assert torch.equal(first, again)
    assert not torch.allclose(first, second)
