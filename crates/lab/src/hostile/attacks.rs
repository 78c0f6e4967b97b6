//! What hostile clients ask: requests with two readings, paths to elsewhere, ranges, heads that never end, streams that are reset, tokens that are none.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, ensure};

use super::client::{Attack, AttackTarget, Response, is_closed, sends};
use super::frames::{CONTINUATION, END_STREAM, HEADERS, PING, frame, get, get_fields, hello, literal, reset};

/// All that need nothing but a title.
pub const ATTACKS: &[Attack] = &[
    Attack { name: "slow heads", round: slow_heads },
    Attack { name: "slow readers", round: slow_readers },
    Attack { name: "bad tokens", round: bad_tokens },
    Attack { name: "bad passwords", round: bad_passwords },
    Attack { name: "ranges", round: ranges },
    Attack { name: "smuggling", round: smuggling },
    Attack { name: "paths", round: paths },
    Attack { name: "rapid reset", round: rapid_reset },
    Attack { name: "patient reset", round: patient_reset },
    Attack { name: "continuation", round: continuation },
    Attack { name: "hang-ups", round: hang_ups },
    Attack { name: "crowds", round: crowds },
];

/// Connections of a crowd, and the requests that each sends ahead.
const CROWD: (usize, usize) = (250, 40);
/// Pause between two bytes of slow clients.
const PAUSE: Duration = Duration::from_millis(3);

/// A connection of HTTP/2.
struct Flood(TcpStream);

impl Flood {
    fn to(target: &AttackTarget) -> anyhow::Result<Self> {
        let mut stream = target.dial()?;
        sends(&mut stream, &hello(&[]))?;
        Ok(Self(stream))
    }

    fn send(&mut self, bytes: &[u8]) -> anyhow::Result<bool> {
        sends(&mut self.0, bytes)
    }

    /// Whether it is answered when it asks whether anybody is there.
    fn is_alive(&mut self) -> anyhow::Result<bool> {
        if !self.send(&frame(PING, 0, 0, b"anybody?"))? {
            return Ok(false);
        }
        loop {
            let mut head = [0; 9];
            let read = self.0.read_exact(&mut head).and_then(|()| {
                let length = u64::from(u32::from_be_bytes([0, head[0], head[1], head[2]]));
                std::io::copy(&mut (&self.0).take(length), &mut std::io::sink())
            });
            match read {
                Ok(_) if (head[3], head[4]) == (PING, 1) => return Ok(true),
                Ok(_) => {}
                Err(error) if is_closed(&error) => return Ok(false),
                Err(error) => return Err(error).context("HTTP/2: no answer"),
            }
        }
    }
}

/// Streams that are reset with their request in one piece.
fn rapid_reset(target: &AttackTarget) -> anyhow::Result<u64> {
    let mut flood = Flood::to(target)?;
    let streams = (0..200).flat_map(|n| [get(2 * n + 1, &target.title), reset(2 * n + 1)].concat());
    if flood.send(&streams.collect::<Vec<u8>>())? {
        flood.is_alive()?;
    }
    Ok(200)
}

/// Streams that are reset once they are orders.
fn patient_reset(target: &AttackTarget) -> anyhow::Result<u64> {
    let mut flood = Flood::to(target)?;
    let mut requests = 0;
    for stream in (1..100).step_by(2) {
        requests += 1;
        if !flood.send(&get(stream, &target.title))? || !flood.is_alive()? || !flood.send(&reset(stream))? {
            break;
        }
    }
    Ok(requests)
}

/// A head that goes on and on.
fn continuation(target: &AttackTarget) -> anyhow::Result<u64> {
    let mut flood = Flood::to(target)?;
    let more = frame(CONTINUATION, 0, 1, &literal("x", "y")).repeat(500);
    let mut goes_on = flood.send(&frame(HEADERS, END_STREAM, 1, &get_fields(&target.title)))?;
    // More than there is room for on the way.
    for _ in 0..4_000 {
        if !goes_on {
            return Ok(1);
        }
        goes_on = flood.send(&more)?;
    }
    anyhow::bail!("two million frames of one head were taken")
}

/// Requests lists of ranges, then many single bytes at once, and leaves half of the responses
/// unread.
fn ranges(target: &AttackTarget) -> anyhow::Result<u64> {
    let mut client = target.dial()?;
    let list = format!("Range: bytes={}0-\r\n", "5-6,".repeat(1_000));
    sends(&mut client, target.request(&list).as_bytes())?;
    let Some(response) = Response::read(&mut client)? else { return Ok(1) };
    ensure!(response.status == 416, "a thousand ranges: {}", response.head);
    let bytes: String =
        (0..40).map(|n| target.request(&format!("Range: bytes={0}-{0}\r\n", n * 1000))).collect();
    sends(&mut client, bytes.as_bytes())?;
    for _ in 0..20 {
        let Some(response) = Response::read(&mut client)? else { break };
        ensure!(matches!(response.status, 206 | 503), "a byte: {}", response.head);
    }
    Ok(41)
}

/// Sends heads slowly, one byte at a time.
fn slow_heads(target: &AttackTarget) -> anyhow::Result<u64> {
    let mut all = (0..30).map(|_| target.dial()).collect::<anyhow::Result<Vec<_>>>()?;
    for byte in target.request("X: y\r\n").as_bytes().iter().take(20) {
        all.retain_mut(|client| client.write_all(&[*byte]).is_ok());
        std::thread::sleep(PAUSE);
    }
    Ok(30)
}

/// Reads titles slowly, a few bytes at a time.
fn slow_readers(target: &AttackTarget) -> anyhow::Result<u64> {
    let mut all = (0..10).map(|_| target.dial()).collect::<anyhow::Result<Vec<_>>>()?;
    for client in &mut all {
        sends(client, target.request("").as_bytes())?;
    }
    for _ in 0..20 {
        all.retain_mut(|client| client.read_exact(&mut [0; 50]).is_ok());
        std::thread::sleep(PAUSE);
    }
    Ok(10)
}

/// Requests a title and then leaves, with a reset.
fn hang_ups(target: &AttackTarget) -> anyhow::Result<u64> {
    let mut client = target.dial()?;
    sends(&mut client, target.request("").as_bytes())?;
    let _ = client.read(&mut [0; 10]);
    rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO))?;
    Ok(1)
}

/// Keeps many connections busy at once: each asks for lists and playlists far ahead, and reads only
/// the first response.
fn crowds(target: &AttackTarget) -> anyhow::Result<u64> {
    let (connections, ahead) = CROWD;
    let playlist = target.title.trim_end_matches(".ts").to_owned() + "/index.m3u8";
    let of_path = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: tv\r\n\r\n");
    let requests = [of_path("/api/v1/titles"), of_path(&playlist)].concat().repeat(ahead / 2);
    let mut all = (0..connections).map(|_| target.dial()).collect::<anyhow::Result<Vec<_>>>()?;
    for client in &mut all {
        sends(client, requests.as_bytes())?;
    }
    for client in &mut all {
        let Some(response) = Response::read(client)? else { continue };
        ensure!(matches!(response.status, 200 | 401 | 503), "a list: {}", response.head);
    }
    Ok((connections * ahead) as u64)
}

/// Requests that could be read in two ways: the connection must end with them.
fn smuggling(target: &AttackTarget) -> anyhow::Result<u64> {
    let all = [
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        "Content-Length: 4\r\nContent-Length: 5\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Content-Length : 4\r\n",
        "X: y\n",
        "X: y\r\n folded\r\n",
        "Host: b\r\n",
    ];
    for lines in all {
        let mut client = target.dial()?;
        // The request hidden in its body would be answered as a request of its own.
        let hidden = "0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: tv\r\n\r\n";
        sends(&mut client, (target.request(lines) + hidden).as_bytes())?;
        let Some(response) = Response::read(&mut client)? else { continue };
        ensure!(matches!(response.status, 400 | 501), "{lines:?} was answered: {}", response.head);
        ensure!(response.header("Connection") == Some("close"), "{lines:?}: the connection goes on");
        ensure!(Response::read(&mut client)?.is_none(), "{lines:?}: what was hidden behind it was answered");
    }
    Ok(all.len() as u64)
}

/// Paths to elsewhere.
fn paths(target: &AttackTarget) -> anyhow::Result<u64> {
    let all = [
        "/titles/..%2f..%2fetc/passwd",
        "/../../etc/passwd",
        "/titles/%2e%2e/%2e%2e/etc/passwd",
        "/titles/....//....//etc/passwd.ts",
        "/titles/title%00.ts",
        "/titles/\\..\\..\\etc\\passwd",
        "/titles//etc/passwd.ts",
    ];
    for path in all {
        let mut client = target.dial()?;
        sends(
            &mut client,
            format!("GET {path} HTTP/1.1\r\nHost: tv\r\nConnection: close\r\n\r\n").as_bytes(),
        )?;
        let Some(response) = Response::read(&mut client)? else { continue };
        ensure!(matches!(response.status, 400 | 404), "{path} was answered: {}", response.head);
    }
    Ok(all.len() as u64)
}

/// Asks for what only some may see, with each of these in the place of a right.
fn unknown(target: &AttackTarget, credentials: impl Iterator<Item = String>) -> anyhow::Result<u64> {
    let (mut client, mut requests) = (target.dial()?, 0);
    for credentials in credentials {
        let head = format!("GET /metrics HTTP/1.1\r\nHost: tv\r\nAuthorization: {credentials}\r\n\r\n");
        if !sends(&mut client, head.as_bytes())? {
            break;
        }
        requests += 1;
        let Some(response) = Response::read(&mut client)? else { break };
        ensure!(matches!(response.status, 401 | 403 | 429 | 503), "{credentials}: {}", response.head);
    }
    Ok(requests)
}

/// Tokens that are none, each another one.
fn bad_tokens(target: &AttackTarget) -> anyhow::Result<u64> {
    let port = target.dial()?.local_addr()?.port();
    unknown(target, (0..500).map(|n| format!("Bearer {port:04x}{n:028x}")))
}

/// Sends wrong passwords: each costs the server as much as a right one, until it checks no more of
/// them.
fn bad_passwords(target: &AttackTarget) -> anyhow::Result<u64> {
    // "boss:wrong"
    unknown(target, (0..100).map(|_| "Basic Ym9zczp3cm9uZw==".to_owned()))
}
