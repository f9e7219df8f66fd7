"""The pages of the console in headless Chromium: pages, actions, keyboard, accessibility, sizes, paint."""

import csv
import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from edge.local.protocol import Connection, Disconnect, Done
from edge.mqtt import PingReq, Properties, Publish, Subscribe, Subscription, encode
from tests.support.abuse import V5, connected
from tests.support.brim_process import BrimProcess
from tests.support.chromium import Chromium, Page
from tests.support.directories import memory_directory
from tests.support.project import ROOT
from tests.support.sql_queries import ENDLESS, query_processes
from tests.support.waiting import wait_until
from tests.support.web_console import PASSWORD, console, write_users

pytestmark = pytest.mark.browser

SETTINGS = """
[[stream]]
name = "alarms"
topics = ["plant/+/alarm/#"]
durability = "disk"
"""
HOSTILE = "<img src=x onerror=\"document.title='owned'\">"
PAGES = (
    "overview",
    "clients",
    "topics",
    "tap",
    "sql",
    "streams",
    "log",
    "bridges",
    "consumers",
    "publish",
    "settings",
    "lines",
)
FIRST_PAINT_MAX_MS = 10_000  # a busy machine; benchmarks have the figure
# Rows of the accessibility tree that a person who cannot see the page gets a name for.
NAMED_ROLES = {
    "button", "link", "textbox", "searchbox", "checkbox", "combobox", "image", "meter", "dialog", "region",
    "table", "navigation",
}  # fmt: skip


class Site(NamedTuple):
    broker: BrimProcess
    url: str
    child: Any
    browser: Chromium


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("pages")
    with (
        Chromium() as browser,
        memory_directory() as runtime,
        BrimProcess(runtime, directory, SETTINGS, edge="press-7") as broker,
        console(runtime, *write_users(directory / "users")) as (url, child),
    ):
        yield Site(broker, url, child, browser)


@pytest.fixture(scope="module")
def admin(site: Site) -> Page:
    return signed_in(site, "ann")


@pytest.fixture(autouse=True)
def no_errors(admin: Page) -> Iterator[None]:
    """No page throws, and none violates its content security policy."""
    admin.value("document.querySelectorAll('dialog').forEach((one) => one.close())")  # of a failed test
    yield
    errors = list(admin.errors)
    admin.errors.clear()
    assert errors == []


def signed_in(site: Site, user: str) -> Page:
    page = site.browser.page()
    page.open(site.url)
    page.write("input[name=user]", user)
    page.write("input[name=password]", PASSWORD)
    page.click("dialog button.main")
    page.until_text(f"{user}, ")
    page.errors.clear()
    return page


def show(page: Page, name: str) -> None:
    page.value(f"location.hash = '#/{name}'")
    link = f"#nav a[aria-current][href='#/{name.partition('/')[0]}']"
    page.until(f"document.querySelector({json.dumps(link)})")


def publish(broker: BrimProcess, *messages: Publish) -> None:
    with connected(broker.port, "publisher", V5) as client:
        client.sendall(b"".join(encode(message, V5) for message in messages))
        client.sendall(encode(PingReq(), V5))
        assert client.recv(1 << 16)


def test_a_page_needs_a_log_in_and_a_wrong_password_is_named(site: Site) -> None:
    page = site.browser.page()
    page.open(site.url)
    page.until_text("Sign in to see this broker")
    page.write("input[name=user]", "ann")
    page.write("input[name=password]", "wrong")
    page.press("Enter")
    page.until_text("wrong user or password")
    assert page.value("document.activeElement.name") == "password"
    page.press("Escape")
    page.until("!document.querySelector('dialog')")


def test_every_page_is_drawn_and_has_one_heading(admin: Page, site: Site) -> None:
    publish(site.broker, Publish("plant/1/temp", b"21.5"))
    for name in PAGES:
        show(admin, name)
        admin.until("!document.querySelector('#view > p.muted')")
        assert admin.value("document.querySelectorAll('h1').length") == 1
        admin.until("!document.querySelector('.notice.bad')")
    show(admin, "overview")
    admin.until_text("press-7, version")
    admin.until_text("running")
    admin.until("document.querySelectorAll('canvas').length === 6")
    admin.until(
        "document.querySelector('canvas').getAttribute('aria-label').startsWith('Messages per second: in ')"
    )


def test_a_client_is_shown_disconnected_and_forgotten(admin: Page, site: Site) -> None:
    options = Properties(session_expiry_interval_s=99)
    with connected(site.broker.port, HOSTILE, V5, properties=options) as client:
        client.sendall(encode(Subscribe(1, (Subscription("plant/#", 1),)), V5))
        assert client.recv(99)
        show(admin, "clients")
        admin.write("input[type=search]", "onerror")
        admin.click("td button.link")
        admin.until_text("plant/#")
        admin.click("text=Disconnect")
        admin.until_text("may connect again")
        admin.click("[data-key=confirm]")
        admin.until_text("is disconnected")
        assert client.recv(99)[:1] == b"\xe0"
    admin.until("document.querySelector('td .pill')?.textContent === 'away'")
    admin.click("td button.link")
    admin.click("text=Forget")
    admin.click("[data-key=confirm]")
    admin.until_text("no client matches")
    assert "no clients" not in admin.text()  # the same again below the table
    assert "owned" not in admin.value("document.title")


def test_topics_are_walked_searched_and_charted(admin: Page, site: Site) -> None:
    values = (Publish("walk/1/temp", str(20 + n / 10).encode()) for n in range(60))
    publish(
        site.broker,
        *values,
        Publish("walk/1/state", json.dumps({"rpm": 9}).encode()),
        Publish(f"walk/{HOSTILE}", b"x"),
    )
    show(admin, "topics")
    admin.click("a[data-key='d-walk']")
    admin.click("a[data-key='d-walk/1']")
    admin.click("button[data-key='v-walk/1/temp']")
    admin.until_text("Newest messages (60 in memory)")
    admin.until("document.querySelector('dialog canvas').getAttribute('aria-label').includes('25.9')")
    admin.press("Escape")
    admin.write("input[type=search]", "STATE")
    admin.until("document.querySelectorAll('tbody tr').length === 1")
    admin.until_text("walk/1/state")
    show(admin, "topics/walk")
    admin.until_text("<img src=x")
    assert "owned" not in admin.value("document.title")


def test_messages_pass_by_and_pause(admin: Page, site: Site) -> None:
    show(admin, "tap")
    admin.until_text("live, 0 messages")
    publish(site.broker, Publish("passing/by", b"hello \x1b[31m", retain=True))
    admin.until_text("passing/by")
    admin.until_text("hello \\u001b[31m")
    admin.click("text=Pause")
    admin.until_text("stopped, ")
    admin.click("text=Clear")
    admin.until("document.querySelectorAll('.tap li').length === 0")
    admin.write("input[aria-label='Topic filter']", "only/#")
    admin.click("text=Start")
    admin.until_text("live, ")
    publish(site.broker, Publish("other", b"no"), Publish("only/this", b"yes"))
    admin.until_text("only/this")
    assert admin.value("document.querySelectorAll('.tap li').length") == 1


def test_a_query_shows_rows_errors_and_a_cut_and_is_cancelled(
    admin: Page, site: Site, tmp_path: Path
) -> None:
    publish(site.broker, Publish("sql/1", HOSTILE.encode()), Publish("sql/2", b'=1+1,"\r\n'))
    show(admin, "sql")
    admin.until("document.querySelector('textarea')?.value.includes('FROM records')")
    columns = "topic, payload_text AS text, 9007199254740993 AS big, NULL AS none"
    query = f"SELECT {columns} FROM records ORDER BY topic"
    admin.write("textarea", query)
    admin.write("input[placeholder='plant/#']", "sql/#")
    admin.value(
        "document.querySelector('textarea').dispatchEvent("
        "new KeyboardEvent('keydown', { key: 'Enter', ctrlKey: true, bubbles: true }))"
    )
    admin.until_text("2 rows in ")
    cells = admin.value(
        "[...document.querySelectorAll('tbody tr:first-child td')].map((one) => one.textContent)"
    )
    assert cells == ["sql/1", HOSTILE, "9007199254740993", "NULL"]
    assert admin.value("document.querySelectorAll('#view img').length") == 0
    admin.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    admin.click("text=Download CSV")
    wait_until((tmp_path / "records.csv").exists)
    with (tmp_path / "records.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["topic", "text", "big", "none"]
    assert rows[1] == ["sql/1", HOSTILE, "9007199254740993", ""]
    assert rows[2][1] == "'=1+1,\"\r\n"  # no formula
    admin.write("textarea", "SELECT * FROM range(1001)")
    admin.click("text=Run")
    admin.until_text("1,000 rows in ")
    admin.until_text("; the rest is cut")
    admin.write("textarea", "SELECT * FROM nothing")
    admin.click("text=Run")
    admin.until("document.querySelector('pre.notice').textContent.includes('nothing does not exist')")
    admin.write("textarea", ENDLESS)
    admin.click("text=Run")
    admin.until_text("running")
    wait_until(lambda: query_processes(site.child.pid))
    admin.click("text=Cancel")
    admin.until_text("cancelled")
    wait_until(lambda: not query_processes(site.child.pid))
    admin.click("text=Run")
    wait_until(lambda: query_processes(site.child.pid))
    show(admin, "overview")
    wait_until(lambda: not query_processes(site.child.pid))
    admin.errors.clear()  # the refused query: an answer of 400 is an error line of the browser


def test_log_lines_are_shown_searched_and_paused(admin: Page, site: Site) -> None:
    def log(client_id: str) -> None:
        with connected(site.broker.port, client_id, V5), Connection(site.broker.runtime_dir) as connection:
            connection.request(Disconnect(client_id), Done)

    show(admin, "lines")
    admin.until_text("ready edge_id=press-7")
    log(HOSTILE + "\u202e")
    admin.write("input[type=search]", "ONERROR")
    admin.until_text("<img src=x")
    admin.until_text("\\u202e")
    assert "owned" not in admin.value("document.title")
    admin.write("input[type=search]", "")
    admin.choose("select", "error")
    admin.until("document.querySelectorAll('.lines li').length === 0")
    admin.choose("select", "info")
    admin.click("text=Pause")
    admin.until_text("paused, ")
    log("while-paused")
    log("after-it")
    admin.click("text=Continue")
    admin.until_text("after-it")
    admin.until_text("while-paused")
    assert admin.value("document.querySelector('.lines li').textContent.includes('after-it')")


def test_a_bridge_is_paused_resumed_and_skipped(admin: Page) -> None:
    show(admin, "bridges")
    for button, pill in (("Pause", ".pill.warn"), ("Resume", ".card .pill.good")):
        admin.click(f"text={button}")
        admin.click("[data-key=confirm]")
        admin.until("!document.querySelector('dialog')")
        admin.until(f"document.querySelector('{pill}')")
    admin.click("text=Skip records")
    admin.until_text("this cannot be undone")
    admin.click("[data-key=confirm]")
    admin.until("!document.querySelector('dialog')")


def test_a_message_is_published_and_its_retained_copy_cleared(admin: Page) -> None:
    show(admin, "publish")
    admin.write("input.mono", "by/hand")
    admin.write("textarea", "on")
    admin.click("input[type=checkbox]")
    admin.click("form button.main")
    admin.until_text("published to by/hand")
    admin.write("input.mono", "by/#")
    admin.click("form button.main")
    admin.until("document.querySelector('.toast.bad')")
    show(admin, "topics/by")
    admin.click("button[data-key='v-by/hand']")
    admin.until_text("0 retained")  # the list of messages is above the button, and moves it
    admin.click("text=Clear retained")
    admin.click("[data-key=confirm]")
    admin.until_text("the retained message is removed")
    admin.press("Escape")
    admin.errors.clear()  # the refused topic: an answer of 400 is an error line of the browser


def test_files_are_reloaded_and_the_theme_changes(admin: Page) -> None:
    show(admin, "settings")
    admin.until_text("edge_id")
    admin.click("text=Reload")
    admin.click("[data-key=confirm]")
    admin.until_text("there are no changes")
    before = admin.value("getComputedStyle(document.body).backgroundColor")
    admin.click("#theme")
    admin.until(f"getComputedStyle(document.body).backgroundColor !== {json.dumps(before)}")
    admin.click("#theme")


def test_a_reload_shows_what_it_changed_and_what_waits_for_a_restart(admin: Page, site: Site) -> None:
    show(admin, "settings")
    admin.until_text("edge_id")
    configured = site.broker.config.read_text()
    site.broker.config.write_text(f"{configured}\n[limits]\nconnections_max = 321\nreceive_max = 77\n")
    admin.click("text=Reload")
    admin.click("[data-key=confirm]")
    admin.until_text("in force: limits.connections_max")
    admin.until_text("needs a restart: limits.receive_max")
    admin.until("document.querySelector('#view table').textContent.includes('limits.connections_max321')")
    site.broker.config.write_text(configured)
    admin.click("text=Reload")
    admin.click("[data-key=confirm]")
    admin.until("!document.querySelector('#view table').textContent.includes('limits.connections_max321')")


def test_the_log_page_has_the_bytes_that_were_read_back(admin: Page) -> None:
    show(admin, "log")
    admin.until_text("0 B from the log, 0 B from the archive")


def test_a_viewer_sees_no_button_that_changes_something(site: Site) -> None:
    page = signed_in(site, "eve")
    with connected(site.broker.port, "shown", V5):
        for name in ("clients", "bridges", "consumers", "settings"):
            show(page, name)
            page.until("!document.querySelector('#view > p.muted')")
        show(page, "lines")
        page.until_text("shown to the role operator")
        show(page, "clients")
        page.write("input[type=search]", "shown")
        page.click("td button.link")
        page.until_text("Keep alive")
        text = page.text()
    assert not {"Disconnect", "Forget", "Pause", "Skip records", "Reload"} & set(text.split("\n"))
    page.click("text=Close")
    show(page, "publish")
    page.until_text("needs the role operator")
    assert page.value("[...document.querySelector('form').elements].every((one) => one.disabled)")


def test_the_pages_work_by_keyboard(admin: Page, site: Site) -> None:
    with connected(site.broker.port, "by-key", V5):
        show(admin, "clients")
        admin.call("Page.reload")
        first = "document.querySelector('td button.link')?.textContent"  # not of a client that has just left
        admin.until(f"performance.now() < 60000 && {first} === 'by-key'")
        admin.press("Tab")
        assert admin.value("document.activeElement.textContent") == "Skip to the content"
        admin.press("Enter")
        reached = set()
        for _ in range(40):
            admin.press("Tab")
            reached.add(admin.value("document.activeElement.textContent.slice(0, 40)"))
            if admin.value("document.activeElement.matches('td button.link')"):
                break
        assert {"Client"} <= reached
        admin.press("Enter")
        admin.until("document.querySelector('dialog[open]')")
        assert admin.value("document.querySelector('dialog').contains(document.activeElement)")
        admin.press("Escape")
        admin.until("!document.querySelector('dialog')")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_names_roles_and_contrast_are_accessible(dark: bool, admin: Page, site: Site) -> None:
    admin.resize(1280, 860, dark=dark)
    with connected(site.broker.port, "seen", V5):
        for name in PAGES:
            show(admin, name)
            admin.until("!document.querySelector('#view > p.muted')")
            assert unnamed(admin) == [], name
            assert admin.value(CONTRAST) == [], name
    assert admin.value("document.documentElement.lang") == "en"
    admin.resize(1280, 860)


def unnamed(page: Page) -> list[str]:
    """Elements of the accessibility tree, as Chromium computes it, that have no name."""
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    return [
        node["role"]["value"]
        for node in nodes
        if not node.get("ignored")
        and node["role"]["value"] in NAMED_ROLES
        and not node.get("name", {}).get("value")
    ]


CONTRAST = """(() => {
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const ground = (one) => {
    for (; one; one = one.parentElement) {
      const color = parts(getComputedStyle(one).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const bad = [];
  const look = (text, color, one) => {
    const [a, b] = [light(parts(color)), light(ground(one))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) bad.push(text);
  };
  for (const one of document.querySelectorAll("[placeholder]:not(:disabled)")) {
    look(one.placeholder, getComputedStyle(one, "::placeholder").color, one);
  }
  while (walker.nextNode()) {
    const one = walker.currentNode.parentElement;
    const hidden = !one.getClientRects().length || one.closest(":disabled, noscript, script");
    if (!walker.currentNode.data.trim() || hidden) continue;
    look(walker.currentNode.data.trim(), getComputedStyle(one).color, one);
  }
  return bad;
})()"""


def test_pages_fit_a_phone(admin: Page) -> None:
    admin.resize(390, 844, mobile=True)
    for name in PAGES:
        show(admin, name)
        admin.until("!document.querySelector('#view > p.muted')")
        assert admin.value("document.documentElement.scrollWidth") <= 390, name
    admin.resize(1280, 860)


def test_a_name_that_turns_the_direction_of_text_is_shown_in_its_order(admin: Page, site: Site) -> None:
    with connected(site.broker.port, "pump-\u202e7-esrever", V5):
        show(admin, "clients")
        admin.until_text(r"pump-\u202e7-esrever")


def test_the_first_paint_needs_no_answer_of_the_broker(site: Site) -> None:
    page = site.browser.page()
    page.open(site.url)
    page.until("performance.getEntriesByName('first-contentful-paint').length")
    assert (
        page.value("performance.getEntriesByName('first-contentful-paint')[0].startTime") < FIRST_PAINT_MAX_MS
    )
    hosts = page.value(
        "[...new Set(performance.getEntriesByType('resource').map((one) => new URL(one.name).host))]"
    )
    assert hosts == [site.url.partition("//")[2]]


def test_ten_thousand_clients_and_a_hundred_thousand_topics_stay_in_pages(admin: Page, site: Site) -> None:
    """With BRIM_EXAMPLES as many as the name; a short run has a fifth of them."""
    clients, topics = (10_000, 100_000) if os.environ.get("BRIM_EXAMPLES") else (2_000, 20_000)
    options = Properties(session_expiry_interval_s=999)
    for number in range(clients):
        connected(site.broker.port, f"many-{number:05}", V5, properties=options).close()
    for begin in range(0, topics, 1_000):
        publish(site.broker, *(Publish(f"many/{n // 100}/{n}", b"1") for n in range(begin, begin + 1_000)))
    show(admin, "clients")
    admin.write("input[type=search]", "many-")
    admin.until_text(f"1 to 100 of {clients:,}")
    assert admin.value("document.querySelectorAll('tbody tr').length") == 100
    admin.click("text=Next")
    admin.until_text(f"101 to 200 of {clients:,}")
    admin.until_text("many-00100")
    show(admin, "topics/many")
    admin.until_text(f"1 to 100 of {topics // 100:,}")
    show(admin, "topics")
    admin.write("input[type=search]", f"/{topics - 1}")
    admin.until_text(f"many/{(topics - 1) // 100}/{topics - 1}")


def test_the_session_ends_with_the_log_out(site: Site) -> None:
    page = signed_in(site, "bob")
    page.click("text=Sign out")
    page.until_text("Sign in to see this broker")


IMAGES = ROOT / "docs" / "images"
IMAGES_MAX_BYTES = 200_000


def test_the_images_of_the_documents_are_small_and_used() -> None:
    images = sorted(IMAGES.glob("*.png"))
    assert sum(path.stat().st_size for path in images) <= IMAGES_MAX_BYTES
    page = (ROOT / "docs/how-to/web-console.md").read_text()
    assert [f"../images/{path.name}" in page for path in images] == [True, True, True]


@pytest.mark.skipif(
    not os.environ.get("BRIM_SCREENSHOTS"), reason="BRIM_SCREENSHOTS=1 writes docs/images again"
)
def test_images_of_the_documents_are_written(admin: Page, site: Site) -> None:
    from PIL import Image  # of matplotlib

    IMAGES.mkdir(exist_ok=True)
    with connected(site.broker.port, "scada", V5) as client, connected(site.broker.port, "plc-1", V5):
        client.sendall(encode(Subscribe(1, (Subscription("plant/#", 0),)), V5))
        begin = time.monotonic()
        while (passed_s := time.monotonic() - begin) < FEED_S:
            publish(site.broker, *telemetry(passed_s))
            client.recv(1 << 16)
            if not show_is(admin, "overview"):
                show(admin, "overview")
            time.sleep(0.05)
            admin.value("1")  # takes events of the page
    admin.resize(1200, 720)
    admin.choose("select", "2 min")
    time.sleep(1)
    admin.screenshot(IMAGES / "console-overview.png")
    show(admin, "topics/plant/1")
    admin.click("button[data-key='v-plant/1/motor']")
    admin.until("document.querySelector('dialog canvas')")
    time.sleep(1)
    admin.screenshot(IMAGES / "console-topic.png")
    admin.resize(390, 760, dark=True, mobile=True)
    show(admin, "overview")
    time.sleep(3)
    admin.screenshot(IMAGES / "console-phone.png")
    admin.resize(1280, 860)
    for path in IMAGES.glob("console-*.png"):  # a tenth of the colours, rare ones too, a third of the bytes
        few = Image.open(path).convert("RGB").quantize(192, Image.Quantize.MAXCOVERAGE)
        few.save(path, optimize=True)


FEED_S = 60.0


def show_is(page: Page, name: str) -> bool:
    return bool(page.value(f"location.hash === '#/{name}'"))


def telemetry(passed_s: float) -> Iterator[Publish]:
    for line in range(1, 6):
        wave = math.sin(passed_s / 6 + line)
        motor = {"current": round(6 + 2 * wave, 2), "torque": round(9 + 3 * math.cos(passed_s / 4), 2)}
        yield Publish(f"plant/{line}/motor", json.dumps(motor).encode())
        for _ in range(int(12 + 6 * wave)):
            yield Publish(f"plant/{line}/temp", f"{21 + line + wave:.2f}".encode())
    if int(passed_s * 2) % 5 == 0:
        yield Publish("plant/3/alarm/door", b"open", qos=1, packet_id=1)
