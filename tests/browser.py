"""Chromium without a window, driven through two pipes by its DevTools protocol: no driver and no package needed."""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import time

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
KEYS = {"Enter": 13, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
KEYS |= {"Delete": 46, "Tab": 9, " ": 32}


class Page:
    """One page. ``console`` holds what it complained about: errors, warnings and requests that were refused."""

    def __init__(self, profile):
        program = shutil.which("chromium") or shutil.which("chromium-browser")
        theirs_in, self._out = _high(os.pipe())
        self._in, theirs_out = _high(os.pipe())
        self._process = os.posix_spawn(
            program,
            [program, *FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"],
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_DUP2, theirs_in, 3),  # where Chromium reads commands
                (os.POSIX_SPAWN_DUP2, theirs_out, 4),  # and writes answers
            ],
        )
        os.close(theirs_in), os.close(theirs_out)
        self._buffer, self._id, self._session, self.console, self._events = b"", 0, None, [], []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def close(self):
        self._session = None
        self.send("Browser.close")
        deadline = time.monotonic() + 20
        while os.waitpid(self._process, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(self._process, signal.SIGKILL)
                deadline = float("inf")
            time.sleep(0.02)
        os.close(self._in), os.close(self._out)

    # The protocol: JSON with a zero byte behind it

    def send(self, method, **parameters):
        self._id += 1
        message = {"id": self._id, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._id:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def _receive(self, seconds=60):
        while b"\0" not in self._buffer:
            if not select.select([self._in], [], [], seconds)[0]:
                raise TimeoutError(f"Chromium has said nothing for {seconds} s")
            self._buffer += os.read(self._in, 1 << 16)
        text, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(text)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, event, details):
        self._events.append(event)
        if event == "Runtime.exceptionThrown":
            self.console.append(details["exceptionDetails"]["exception"]["description"])
        elif event == "Runtime.consoleAPICalled":
            self.console.append(str([argument.get("value") for argument in details["args"]]))
        elif event == "Log.entryAdded":
            self.console.append(details["entry"]["text"])

    # What a reader does

    def open(self, url):
        self._events.clear()
        self.send("Page.navigate", url="about:blank")  # so that a link to the same page loads it again
        self.send("Page.navigate", url=url)
        while self.evaluate("document.readyState + location.protocol") != f"complete{url.partition('/')[0]}":
            time.sleep(0.01)
        self.settle()

    def evaluate(self, expression):
        """The value of a JavaScript expression, of a promise what it promises."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']['exception']['description']}")
        return answer["result"].get("value")

    def settle(self):
        """Wait until what is scheduled has been drawn."""
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done())))")

    def resize(self, width, height, dark=False, touch=False):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=touch)
        self.send("Emulation.setTouchEmulationEnabled", enabled=touch)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.settle()

    def mouse(self, *path):
        """Press at the first place, move along the others, release at the last."""
        for kind, (x, y) in [
            ("Moved", path[0]),
            ("Pressed", path[0]),
            *(("Moved", p) for p in path[1:]),
            ("Released", path[-1]),
        ]:
            buttons = {"button": "left", "buttons": 1, "clickCount": 1} if kind != "Moved" or len(path) > 1 else {}
            self.send("Input.dispatchMouseEvent", type=f"mouse{kind}", x=x, y=y, **buttons)
        self.settle()

    def touch(self, *path):
        for n, (x, y) in enumerate(path):
            self.send(
                "Input.dispatchTouchEvent", type="touchMove" if n else "touchStart", touchPoints=[{"x": x, "y": y}]
            )
        self.send("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
        self.settle()

    def press(self, key, times=1, shift=False):
        details = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key], "modifiers": 8 if shift else 0}
        for _ in range(times):
            self.send("Input.dispatchKeyEvent", type="keyDown", **details, **({"text": "\r"} if key == "Enter" else {}))
            self.send("Input.dispatchKeyEvent", type="keyUp", **details)
        self.settle()

    def screenshot(self):
        """PNG bytes."""
        return base64.b64decode(self.send("Page.captureScreenshot")["data"])


def _high(fds):
    """The same two, with numbers far from 3 and 4; the child does not inherit them."""
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in fds]
    for fd in fds:
        os.close(fd)
    return moved
