//! A server that speaks S3, by the crate `s3s-fs`: it checks signatures, and keeps objects as files. Faults are put between it and its
//! clients. The tests of the server have this file too.
#![allow(dead_code)]

use std::collections::VecDeque;
use std::convert::Infallible;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use millrace_objects::{AccessOptions, Environment, LibraryUrl, ObjectLibrary};
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

pub(crate) const KEY: &str = "AKIATESTKEY";
pub(crate) const SECRET: &str = "0123456789-the-secret";
pub(crate) const BUCKET: &str = "films";

/// What happens to a response.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// A byte in the middle is another.
    Flip,
    /// This status, and an error with this code.
    Status(u16, &'static str),
    /// Half of the body, and nothing more.
    Hang,
    /// Half of the body, then the connection ends.
    Cut,
    /// Nothing until [`S3Server::release`], then the object.
    Hold,
}

struct PlannedFault {
    method: &'static str,
    path_part: &'static str,
    skip: usize,
    times: usize,
    fault: Fault,
}

#[derive(Default)]
struct FaultPlan {
    faults: Mutex<Vec<PlannedFault>>,
    requests: Mutex<Vec<String>>,
    /// Number of releases.
    released: tokio::sync::watch::Sender<u64>,
}

impl FaultPlan {
    fn next(&self, method: &str, path: &str) -> Option<Fault> {
        self.requests.lock().unwrap().push(format!("{method} {path}"));
        for planned in self.faults.lock().unwrap().iter_mut() {
            if planned.method != method || !path.contains(planned.path_part) || planned.times == 0 {
                continue;
            }
            if planned.skip > 0 {
                planned.skip -= 1;
                continue;
            }
            planned.times -= 1;
            return Some(planned.fault);
        }
        None
    }
}

pub(crate) struct S3Server {
    dir: tempfile::TempDir,
    port: u16,
    plan: Arc<FaultPlan>,
    _runtime: Runtime,
}

impl S3Server {
    pub(crate) fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(BUCKET)).unwrap();
        let mut builder = S3ServiceBuilder::new(s3s_fs::FileSystem::new(dir.path()).unwrap());
        builder.set_auth(SimpleAuth::from_single(KEY, SECRET));
        let (service, plan) = (builder.build(), Arc::new(FaultPlan::default()));
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let port = listener.local_addr().unwrap().port();
        runtime.spawn(serve(listener, service, Arc::clone(&plan)));
        Self { dir, port, plan, _runtime: runtime }
    }

    /// From the request number `skip` on, `times` responses to this method for paths or ranges with this part have the fault.
    pub(crate) fn plan(
        &self,
        method: &'static str,
        path_part: &'static str,
        skip: usize,
        times: usize,
        fault: Fault,
    ) {
        self.plan.faults.lock().unwrap().push(PlannedFault { method, path_part, skip, times, fault });
    }

    /// There are no faults from now on; held responses stay so.
    pub(crate) fn forget_plan(&self) {
        self.plan.faults.lock().unwrap().clear();
    }

    /// Held responses go on.
    pub(crate) fn release(&self) {
        self.forget_plan();
        self.plan.released.send_modify(|count| *count += 1);
    }

    /// Its address.
    pub(crate) fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Requests until now whose line contains both; forgets them all.
    pub(crate) fn count(&self, method: &str, part: &str) -> usize {
        let requests = std::mem::take(&mut *self.plan.requests.lock().unwrap());
        requests.iter().filter(|line| line.starts_with(method) && line.contains(part)).count()
    }

    /// The file in which the server keeps an object.
    pub(crate) fn file(&self, key: &str) -> PathBuf {
        self.dir.path().join(BUCKET).join(key)
    }

    pub(crate) fn options(&self) -> AccessOptions {
        self.options_with([("AWS_ACCESS_KEY_ID", KEY), ("AWS_SECRET_ACCESS_KEY", SECRET)])
    }

    pub(crate) fn options_with<const N: usize>(&self, variables: [(&str, &str); N]) -> AccessOptions {
        let state = self.dir.path().join("state");
        let mut variables = variables.to_vec();
        variables.push(("XDG_STATE_HOME", state.to_str().unwrap()));
        AccessOptions {
            environment: Environment::of(variables),
            endpoint: Some(self.endpoint()),
            retry_time: Duration::from_secs(2),
            body_time: Duration::from_secs(1),
            ..AccessOptions::default()
        }
    }

    pub(crate) fn library(&self) -> ObjectLibrary {
        open("s3://films/some/prefix", &self.options())
    }
}

pub(crate) fn open(url: &str, options: &AccessOptions) -> ObjectLibrary {
    let url: LibraryUrl = url.parse().unwrap();
    ObjectLibrary::open(&url, options, &Arc::new(AtomicBool::new(false))).unwrap()
}

async fn serve(listener: TcpListener, service: S3Service, plan: Arc<FaultPlan>) {
    while let Ok((stream, _)) = listener.accept().await {
        let (service, plan) = (service.clone(), Arc::clone(&plan));
        let respond = service_fn(move |request: Request<Incoming>| {
            let range = request.headers().get("range").and_then(|range| range.to_str().ok());
            let asked = format!("{} {}", request.uri(), range.unwrap_or_default());
            let fault = plan.next(request.method().as_str(), &asked);
            let (service, mut released) = (service.clone(), plan.released.subscribe());
            async move {
                if matches!(fault, Some(Fault::Hold)) {
                    let _ = released.changed().await;
                }
                respond(service, request, fault).await
            }
        });
        tokio::spawn(
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), respond),
        );
    }
}

async fn respond(
    service: S3Service,
    request: Request<Incoming>,
    fault: Option<Fault>,
) -> Result<Response<FaultyBody>, Infallible> {
    if let Some(Fault::Status(status, code)) = fault {
        // The body is read, as servers do, so that the connection stays in step.
        let _ = request.into_body().collect().await;
        let body =
            format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>{SECRET}</Message></Error>");
        let body = FaultyBody { pieces: [body.into()].into(), end: BodyEnd::Whole };
        return Ok(Response::builder().status(status).body(body).unwrap());
    }
    let (parts, body) = service.call(request.map(s3s::Body::from)).await.unwrap().into_parts();
    let mut bytes = body.collect().await.unwrap().to_bytes().to_vec();
    let half = bytes.len() / 2;
    let end = match fault {
        Some(Fault::Flip) => {
            bytes[half] ^= 0x40;
            BodyEnd::Whole
        }
        Some(Fault::Hang) => BodyEnd::Hangs,
        Some(Fault::Cut) => BodyEnd::IsCut,
        _ => BodyEnd::Whole,
    };
    if !matches!(end, BodyEnd::Whole) {
        bytes.truncate(half);
    }
    Ok(Response::from_parts(parts, FaultyBody { pieces: [bytes.into()].into(), end }))
}

#[derive(Clone, Copy)]
enum BodyEnd {
    Whole,
    Hangs,
    IsCut,
}

struct FaultyBody {
    pieces: VecDeque<Bytes>,
    end: BodyEnd,
}

impl Body for FaultyBody {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        match (self.pieces.pop_front().filter(|piece| !piece.is_empty()), self.end) {
            (Some(piece), _) => Poll::Ready(Some(Ok(Frame::data(piece)))),
            (None, BodyEnd::Whole) => Poll::Ready(None),
            (None, BodyEnd::Hangs) => Poll::Pending,
            (None, BodyEnd::IsCut) => Poll::Ready(Some(Err(std::io::ErrorKind::ConnectionReset.into()))),
        }
    }
}
