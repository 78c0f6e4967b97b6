//! Viewers that fetch segments made here: the site is asked about them, and learns the amount that
//! they take.

use std::cell::{Cell, RefCell};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use millrace_web::{DeliveredAmount, DeliveryRefusal, WebLimits};
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
use rustix::net::{AddressFamily, SocketType, connect, socket};

use super::client::Client;
use super::cmaf::{listed, titles};
use super::connections::wait_for;
use super::h2::{DATA, H2, INITIAL_WINDOW_SIZE, WINDOW_UPDATE, frame, get, reset};
use super::site::{Film, MadeUp, Manner, serve, serve_at};

/// A separate site: its limits and counts apply to no other test.
fn site() -> Arc<MadeUp> {
    let Film { info, index, bytes, .. } = &titles().site.films["open"];
    let (info, index, bytes) = (info.clone(), Arc::clone(index), Arc::clone(bytes));
    MadeUp::with(vec![Film { info, index, bytes, manner: Manner::Sends }])
}

/// The site is asked about clients that fetch pictures or audio; a request for the data before
/// them, or one that only looks, counts as no viewer.
#[test]
fn viewers_are_counted_and_told_to_come_again_when_all_is_full() {
    let site = site();
    let (_web, address, _) = serve(&site, WebLimits::default());
    let mut client = Client::to(address);
    let (maps, segments) = listed(&mut client, "/titles/open/cmaf/256.m3u8");
    let segment = |number: usize| segments[number].0.as_str();
    let fetched = || site.fetches.lock().unwrap().clone();
    assert_eq!(client.get(segment(0)).status, 200);
    assert_eq!(client.get(&segment(0).replace("/256/", "/257/")).status, 200);
    assert_eq!(client.get(&maps[0]).status, 200);
    assert_eq!(client.get(&segment(0).replace("/0.m4s", "/still-0.m4s")).status, 200);
    assert_eq!(client.ask("HEAD", segment(1), "").status, 200);
    assert_eq!(client.get(segment(1)).status, 200);
    let asked: Vec<_> = fetched().into_iter().map(|(segment, _)| segment).collect();
    assert_eq!(asked.iter().map(|segment| segment.number).collect::<Vec<_>>(), [0, 0, 1]);
    // Two channels: a plain tone takes little, and never counts for less than is usual.
    let sounds = site.sounds.lock().unwrap().clone();
    let [None, Some(sound), None] = sounds[..] else { panic!("{sounds:?}") };
    assert!((128_000..200_000).contains(&sound.0), "{sound}");
    let (begins, at) = (segments[0].1, asked[2].at.as_secs_f64());
    assert!(asked[0].at.as_secs_f64() < 0.1 && (at - begins).abs() < 0.1, "{asked:?}, not {begins}");
    assert_eq!((asked[0].conn, asked[0].at), (asked[1].conn, asked[1].at), "one connection");
    let mut other = Client::to(address);
    assert_eq!(other.get(segment(2)).status, 200);
    assert_ne!(fetched()[3].0.conn, asked[0].conn, "another one");
    *site.no_fetches.lock().unwrap() = Some(DeliveryRefusal::Full("all 2 streams are in use".to_owned()));
    let answer = client.get(segment(2));
    *site.no_fetches.lock().unwrap() = None;
    assert_eq!((answer.status, answer.header("Retry-After")), (503, Some("5")));
    assert_eq!(answer.header("Access-Control-Allow-Origin"), Some("*"));
    assert!(answer.text().contains("all 2 streams are in use"), "{}", answer.text());
    assert_eq!(client.get(segment(2)).status, 200, "the connection goes on");
}

/// The amount that a viewer has taken is reported when the transfer is over, whether or not it
/// hangs up in the middle: by HTTP/1 and HTTP/2.
#[test]
fn fetched_segment_bytes_are_reported_after_transfer() {
    let site = site();
    // Little of a segment fits into the kernel's buffers.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    set_socket_send_buffer_size(&listener, 4096).unwrap();
    let (_web, address) = serve_at(&site, listener);
    let mut client = Client::to(address);
    let (_, segments) = listed(&mut client, "/titles/open/cmaf/256.m3u8");
    let path = segments[1].0.as_str();
    let told = || {
        wait_for("it is asked for", || !site.overs.lock().unwrap().is_empty());
        let over = RefCell::new(site.overs.lock().unwrap().pop().unwrap());
        let taken = Cell::new(None);
        wait_for("it is told", || {
            taken.set(over.borrow_mut().try_recv().ok());
            taken.get().is_some()
        });
        taken.get().unwrap()
    };
    let length = client.get(path).body.len() as u64;
    assert!(length > 100_000, "{length}");
    assert_eq!(told(), DeliveredAmount { bytes: length, is_whole: true });
    let part = client.ask("GET", path, "Range: bytes=10-29\r\n");
    assert_eq!((part.status, told()), (206, DeliveredAmount { bytes: 20, is_whole: true }));
    let tag = format!("If-None-Match: {}\r\n", part.header("ETag").unwrap());
    assert_eq!(client.ask("GET", path, &tag).status, 304);
    assert_eq!(told(), DeliveredAmount { bytes: 0, is_whole: true });
    // It reads a little and hangs up.
    let mut client = narrow(address);
    write!(client, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    client.read_exact(&mut [0; 1000]).unwrap();
    drop(client);
    let taken = told();
    assert!(!taken.is_whole && taken.bytes < length, "{taken:?} of {length}");
    // By HTTP/2: it takes 1000 bytes, and wants no more of it while the connection goes on.
    let mut client = H2::to(address, &[(INITIAL_WINDOW_SIZE, 1000)]);
    assert!(client.send(&get(1, path)));
    assert_eq!(client.next_of(DATA, 1).unwrap().payload.len(), 1000);
    assert!(client.send(&reset(1)));
    let taken = told();
    assert!(!taken.is_whole && taken.bytes < length, "{taken:?} of {length}");
    assert!(client.is_alive());
    // A whole one.
    let mut client = H2::to(address, &[(INITIAL_WINDOW_SIZE, 1 << 20)]);
    let window = frame(WINDOW_UPDATE, 0, 0, &(1u32 << 20).to_be_bytes());
    assert!(client.send(&[window, get(1, &path.replace("/256/", "/257/"))].concat()));
    let taken = told();
    assert!(taken.is_whole && taken.bytes > 1000, "{taken:?}");
}

/// A connection whose kernel buffers hold little.
fn narrow(address: SocketAddr) -> TcpStream {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    set_socket_recv_buffer_size(&socket, 4096).unwrap();
    connect(&socket, &address).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}
