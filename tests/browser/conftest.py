"""Chromium, driven by selenium, and a server with a filled database."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from db.connection.engine import open_database
from db.store import Store
from tests import databases
from tests.fill_measurements import first_night
from tests.integration.web.servers import WebServer, running
from tests.stored_jobs import NOON

WAIT_S = 30
SIZE = (1360, 900)
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    f"--window-size={SIZE[0]},{SIZE[1]}",
)
MISSING = "no chromium with its chromedriver is installed: apt-get install chromium chromium-driver"


@dataclass(frozen=True)
class Browser:
    """A browser that is logged in."""

    driver: Any
    server: WebServer

    def open(self, path: str) -> None:
        """Open a page, and wait until its scripts have run."""
        self.driver.get(self.server.url + path)
        self.until(lambda: self.driver.execute_script("return document.readyState") == "complete")

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition; between two pages there may be nothing to ask."""
        WebDriverWait(self.driver, WAIT_S, 0.05, [WebDriverException]).until(lambda _: condition())

    def until_shows(self, text: str) -> None:
        self.until(lambda: text in self.text)

    @property
    def text(self) -> str:
        """What a reader sees of the main part."""
        return str(self.driver.execute_script("return document.getElementById('main').innerText"))

    @property
    def address(self) -> str:
        return str(self.driver.current_url).removeprefix(self.server.url)

    def emulate(self, command: str, **values: Any) -> None:
        self.driver.execute_cdp_cmd(f"Emulation.{command}", values)

    def problems(self) -> list[str]:
        """What the console says of errors since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]


@pytest.fixture(scope="package")
def served(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebServer]:
    data = tmp_path_factory.mktemp("served")
    with databases.sqlite_file(sqlite_template, data) as url:
        with open_database(url, create=False) as database:
            first_night(Store(database, lambda: NOON))
        with running(url, data) as server:
            yield server


@pytest.fixture(scope="package")
def browser(served: WebServer) -> Iterator[Browser]:
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not chromedriver:
        pytest.skip(MISSING)
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in FLAGS:
        options.add_argument(flag)
    driver = webdriver.Chrome(options, webdriver.ChromeService(chromedriver))
    try:
        opened = Browser(driver, served)
        opened.open("/login?next=/jobs")
        driver.find_element(By.NAME, "token").send_keys(f"{served.token}\n")
        opened.until(lambda: opened.address == "/jobs")
        yield opened
    finally:
        driver.quit()
