"""Pages in a real browser: as readers see them, as they change, and with the keyboard alone."""

import pytest
from axe_core_python.selenium import Axe
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.browser.conftest import Browser
from tests.stored_jobs import finish, result_of, start, submit
from workers.attempts.folders import log_path

PAGES = (
    "/", "/since?begin=9999d", "/performance?variant=*-FP16-TP8", "/jobs", "/jobs/{job}", "/tasks/{task}", "/nodes",
    "/submit", "/login", "/jobs/ffff", "/compare?old=variant:*-FP16-TP8&new=variant:*-BF16-TP8",
)  # fmt: skip


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_no_fault_in_light_dark_or_on_a_phone(browser: Browser, page: str) -> None:
    job = browser.server.get("jobs")[-1]["job"]
    browser.problems()
    for scheme, width in (("light", 1360), ("dark", 390)):
        browser.emulate("setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        browser.emulate("setDeviceMetricsOverride", width=width, height=844, deviceScaleFactor=1, mobile=False)
        browser.open(page.format(job=job, task=f"{job}-40"))
        violations = [(each["id"], each["nodes"][0]["html"]) for each in Axe().run(browser.driver)["violations"]]
        assert violations == []
        overflow = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert browser.driver.execute_script(overflow) <= 0
    is_missing = page.endswith("ffff")  # the console tells of the page itself
    assert [problem for problem in browser.problems() if not (is_missing and "404" in problem)] == []
    browser.emulate("clearDeviceMetricsOverride")


def test_pages_change_while_a_job_runs(browser: Browser) -> None:
    server = browser.server
    browser.open("/jobs")
    job = submit(server.store, name="while watched")
    browser.until_shows("while watched")
    attempt = start(server.store, f"{job}-01")
    browser.until_shows("running")
    log = log_path(server.data, attempt.id)
    log.parent.mkdir(exist_ok=True)
    log.write_text("\x1b[32mfirst\x1b[0m line\n")
    browser.open(f"/tasks/{job}-01")
    browser.until_shows("first line")
    browser.driver.find_element(By.CSS_SELECTOR, "#settings summary").click()
    with log.open("a") as file:
        file.write("second line \u202e\n")
    browser.until_shows("second line \\u202e")
    finish(server.store, result_of(attempt))
    browser.until_shows("succeeded")
    assert "first line\nsecond line" in browser.text  # what was read of the log stays
    assert browser.driver.find_element(By.ID, "settings").get_attribute("open")  # and what was opened
    assert browser.problems() == []


def test_the_keyboard_alone_leads_from_the_matrix_to_a_task(browser: Browser) -> None:
    browser.open("/")
    press(browser, Keys.TAB)
    assert focused(browser) == "Skip to the content"
    press(browser, Keys.ENTER)
    until_focused(browser, lambda: tag(browser) == "INPUT")
    press(browser, "*granite*" + Keys.ENTER)
    browser.until(lambda: "model=*granite*" in browser.address.replace("%2A", "*"))
    until_focused(browser, lambda: focused(browser).startswith("FAIL"))
    press(browser, Keys.ENTER)
    browser.until_shows("failed to legalize operation")
    assert browser.address.startswith("/tasks/")


def test_a_mistake_in_a_job_file_is_shown_beside_it(browser: Browser) -> None:
    browser.open("/submit")
    text = browser.driver.find_element(By.NAME, "text")
    text.clear()
    text.send_keys("name: x\nmodel: tiny-llama\nstage: [export]")
    browser.driver.find_element(By.XPATH, "//button[.='Dry run']").click()
    browser.until_shows("did you mean stages?")
    assert browser.driver.find_element(By.CLASS_NAME, "wrong").text.split() == ["3", "stage:", "[export]"]
    assert browser.driver.find_element(By.NAME, "text").get_attribute("value").startswith("name: x")
    assert browser.problems() == []


def test_pages_are_read_and_used_without_scripts(browser: Browser) -> None:
    browser.emulate("setScriptExecutionDisabled", value=True)
    try:
        job = submit(browser.server.store, name="without scripts")
        browser.driver.get(f"{browser.server.url}/jobs/{job}")
        browser.driver.find_element(By.XPATH, "//button[.='Cancel']").click()
        browser.until(lambda: "cancelled by" in source(browser))
        browser.driver.get(f"{browser.server.url}/performance?variant=*-FP16-TP8&metric=itl_ms")
        browser.until(lambda: "All series" in source(browser))
    finally:
        browser.emulate("setScriptExecutionDisabled", value=False)


def source(browser: Browser) -> str:
    """The page as the browser has it, asked for without a script."""
    root = browser.driver.execute_cdp_cmd("DOM.getDocument", {"depth": 0})["root"]["nodeId"]
    return str(browser.driver.execute_cdp_cmd("DOM.getOuterHTML", {"nodeId": root})["outerHTML"])


def press(browser: Browser, keys: str) -> None:
    browser.driver.switch_to.active_element.send_keys(keys)


def focused(browser: Browser) -> str:
    return str(browser.driver.switch_to.active_element.text)


def tag(browser: Browser) -> str:
    return str(browser.driver.execute_script("return document.activeElement.tagName"))


def until_focused(browser: Browser, condition: object) -> None:
    """Go on with the tabulator until the focus is where it should be."""
    assert callable(condition)
    for _ in range(200):
        if condition():
            return
        press(browser, Keys.TAB)
    raise AssertionError("the focus never comes there")
