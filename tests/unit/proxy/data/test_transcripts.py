"""Short transcripts: what somebody does, and what happens then.

Above the lines of a scene stands what it shows, with the settings in brackets. Before an arrow are
things that clients and backends do, or seconds that pass; behind it is all that has happened since
the arrow before. `b1 asked` stands for `b1 dialed; b1 got POST`.
"""

import re
from typing import Any, Final

import pytest

from tests.unit.proxy.data.playbook import (
    COMMENT,
    DONE,
    END,
    ERROR,
    REFUSED,
    STREAM,
    Play,
    chat,
    plain,
    text,
    token,
)

# What a backend sends, by its name here. Any other word is a token.
SENT = {"STREAM": STREAM, "COMMENT": COMMENT, "DONE": DONE, "END": END, "ERROR": ERROR}
SENT |= {"WHOLE": STREAM + token("a") + DONE + END, "TEXT": text("a"), "PART": text("a")[:-3]}
SENT |= {str(code): plain(f"{code} No") for code in (400, 404, 501, 502)}

SCENES: Final = """
a stream passes from its first token on, and not a byte before it
  client asks -> b1 asked
  b1 sends STREAM COMMENT ->
  b1 sends a -> client got 200, a
  b1 sends b; b1 sends DONE END -> client got b; client got [DONE]; client got end; counted 200 b1

a plain answer passes when it is whole
  client asks plain; b1 sends PART -> b1 asked
  b1 sends more -> client got 200, a; counted 200 b1

a plain answer that is cut is asked of another
  client asks plain; b1 sends PART; b1 resets -> b1 asked; b1 failed: cut; b2 asked
  b2 sends TEXT -> client got 200, a; counted 200 b2

a dial that is refused is asked of another
  b1 refuses; client asks -> b1 dialed; b1 failed: refused; b2 asked

all refuse
  b1 refuses; b2 refuses; client asks -> b1 dialed; b1 failed: refused; b2 dialed;
    b2 failed: refused; client got 502, backend_error; counted 502 b2

a dial that takes too long [connect_s 2]
  b1 hangs; client asks; 1.9 s -> b1 dialed
  0.2 s -> b1 failed: connect; b2 asked

a dial is bridged by comments too [connect_s 20; hold_s 3]
  b1 hangs; client asks; 3.1 s -> b1 dialed; client got 200, ping
  17 s -> client got ping; b1 failed: connect; b2 asked

a first token that takes too long, and a head is none [first_byte_s 3]
  client asks; b1 sends STREAM; 2.9 s -> b1 asked
  0.2 s -> b1 dropped; b1 failed: timeout; b2 asked

time in which the process did not run counts for nobody [first_byte_s 3]
  client asks; process sleeps; 2.9 s -> b1 asked
  0.6 s -> b1 dropped; b1 failed: timeout; b2 asked

a late first token is bridged by comments, and a failure behind them is hidden [hold_s 5]
  client asks; 5.1 s -> b1 asked; client got 200, ping
  15 s -> client got ping
  b1 resets -> b1 failed: reset; b2 asked
  b2 sends WHOLE -> client got a [DONE]; client got end; counted 200 b2

a failure of all behind a comment is an event [hold_s 5]
  client asks; 5.1 s; b1 resets -> b1 asked; client got 200, ping; b1 failed: reset; b2 asked
  b2 sends 502 -> b2 dropped; b2 failed: status; client got backend_error; client closed;
    counted 200 b2

a stream that falls silent [idle_s 10]
  client asks; b1 sends STREAM a; 9 s; b1 sends b; 9.9 s -> b1 asked; client got 200, a;
    client got b
  0.2 s -> b1 dropped; b1 failed: idle; client got stream_broken; client closed; counted 200 b1

a plain answer may take its time until it begins, and no silence amid its body [idle_s 10]
  client asks plain; 30 s; b1 sends PART; 9.9 s -> b1 asked
  0.2 s -> b1 dropped; b1 failed: cut; b2 asked

a request that takes longer than any may, before its first token [total_s 5]
  client asks; 5.1 s -> b1 asked; b1 dropped; b1 failed: out_of_time;
    client got 504, backend_timeout; counted 504 b1

a request that takes longer than any may, amid its answer [total_s 5]
  client asks; b1 sends STREAM a; 5.1 s -> b1 asked; client got 200, a; b1 dropped;
    b1 failed: total; client got stream_broken; client closed; counted 200 b1

a client that waits no longer has the engine freed, and its own timer comes first
  client asks with x-stainless-read-timeout: 3; 3.1 s -> b1 asked
  0.2 s -> b1 dropped; b1 failed: client_timeout; client got 408, request_timeout; counted 408 b1

a client that takes nothing stops its backend, its own silence [idle_s 5; client_stall_s 20]
  client asks; b1 sends STREAM a -> b1 asked; client got 200, a
  client fills; 19 s; client drains -> b1 is not read; b1 is read again
  5.1 s -> b1 dropped; b1 failed: idle; client got stream_broken; client closed; counted 200 b1

a client that takes nothing for long is dropped [client_stall_s 20]
  client asks; b1 sends STREAM a -> b1 asked; client got 200, a
  client fills; 20.1 s -> b1 is not read; client dropped; b1 dropped; counted 200 b1

a connection is used again once it has rested: what it sends unasked comes before [one backend]
  client asks; b1 sends WHOLE -> b1 asked; client got 200, a [DONE]; client got end;
    counted 200 b1
  client asks -> b1 asked
  b1 sends WHOLE; 0.1 s -> client got 200, a [DONE]; client got end; counted 200 b1
  client asks -> b1 got POST

a connection that its server has closed meanwhile is no failure [one backend]
  client asks; b1 sends WHOLE; 1 s; client asks -> b1 asked; client got 200, a [DONE];
    client got end; b1 got POST; counted 200 b1
  b1 resets -> b1 asked

a reset that comes later than any round trip is a failure: an engine has worked [one backend]
  client asks; b1 sends WHOLE; 1 s; client asks; 0.5 s -> b1 asked; client got 200, a [DONE];
    client got end; b1 got POST; counted 200 b1
  b1 resets -> b1 failed: reset; client got 502, backend_error; counted 502 b1

a connection that is long idle is closed [one backend]
  client asks; b1 sends WHOLE; 3.4 s -> b1 asked; client got 200, a [DONE]; client got end;
    counted 200 b1
  0.2 s -> b1 dropped

a connection on which too much came is not used again [one backend]
  client asks; b1 sends WHOLE more -> b1 asked; client got 200, a [DONE]; client got end;
    b1 dropped; counted 200 b1
  1 s; client asks -> b1 asked

a connection is not used for other credentials [one backend]
  client asks; b1 sends WHOLE; 1 s -> b1 asked; client got 200, a [DONE]; client got end;
    counted 200 b1
  client asks with authorization: Bearer other -> b1 asked

only the framing lacks its end
  client asks; b1 sends STREAM a; b1 sends DONE; b1 closes -> b1 asked; client got 200, a;
    client got [DONE]; client got end; counted 200 b1

a 501 is not tried again
  client asks; b1 sends 501 -> b1 asked; client got 501, 2 bytes; counted 501 b1

a client leaves while its backend is dialed
  b1 hangs; client asks -> b1 dialed
  client closes -> client dropped; counted 499 b1

a client leaves before the first token
  client asks; client closes -> b1 asked; client dropped; b1 dropped; counted 499 b1

a client leaves midway
  client asks; b1 sends STREAM a; client resets -> b1 asked; client got 200, a; b1 dropped;
    counted 200 b1

a client leaves between two attempts
  b2 hangs; client asks; b1 resets -> b1 asked; b1 failed: reset; b2 dialed
  client closes -> client dropped; counted 499 b2

a drain that begins lets the answer end
  client asks; b1 sends STREAM a; drain begins; b1 sends DONE END -> b1 asked;
    client got 200, a; client got [DONE]; client got end; counted 200 b1

a drain that is over ends a stream
  client asks; b1 sends STREAM a; drain ends -> b1 asked; client got 200, a; b1 dropped;
    client got draining; client closed; counted 200 b1

a drain that is over ends what has not begun
  client asks; drain ends -> b1 asked; b1 dropped; client got 503, draining; client closed;
    counted 503 b1
"""
NAMED: Final = {
    scene.partition("\n")[0].partition(" [")[0]: scene for scene in SCENES.strip().split("\n\n")
}


def settings_of(title: str) -> dict[str, Any]:
    """What stands in the brackets behind a title."""
    timeouts: dict[str, float] = {}
    for each in re.findall(r"\[(.*)\]", title):
        if each == "one backend":
            return {"backends": 1}
        timeouts = {name: float(value) for name, value in map(str.split, each.split("; "))}
    return {"timeouts": timeouts}


def happens(play: Play, action: str) -> None:
    who, _, what = action.partition(" ")
    verb, _, more = what.partition(" ")
    if what == "s":
        play.passes(float(who))
    elif who == "process":
        play.sleeps(100)
    elif who == "drain":
        connection = play.client.connection
        connection.announce_close() if verb == "begins" else connection.break_off()
        play.turns()
    elif verb == "asks":
        head = more.removeprefix("with ").encode() + b"\r\n" if more.startswith("with") else b""
        play.client.sends(chat(head=head, stream=more != "plain"))
    elif verb in ("hangs", "refuses"):
        play.down[who] = None if verb == "hangs" else REFUSED
    elif what == "sends more":
        play[who].sends(text("a")[-3:])
    elif verb == "sends":
        rest = {"more": b"HTTP/1.1 200 OK\r\n"}
        play[who].sends(*[(SENT | rest).get(word) or token(word) for word in more.split()])
    else:
        getattr(play.client if who == "client" else play[who], verb)()


@pytest.mark.parametrize("name", NAMED)
def test_scene(name: str) -> None:
    title, *lines = NAMED[name].replace("\n    ", " ").split("\n")
    play = Play(**settings_of(title))
    for line in lines:
        actions, _, told = line.strip().partition("->")
        for action in actions.strip().split("; "):
            happens(play, action)
        wanted = re.sub(r"(b\d) asked", r"\1 dialed; \1 got POST", told.strip())
        assert play.happened() == (wanted.split("; ") if wanted else []), line
