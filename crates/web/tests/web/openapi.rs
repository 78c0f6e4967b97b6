//! `/api/v1/openapi.json` describes the server's behaviour: it has every address of the router and
//! no other, and the answer to any request is one that it describes.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;

use boon::{Compiler, SchemaIndex, Schemas};
use millrace_web::WebLimits;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::Value;

use super::client::{Client, Response};
use super::hls::films;
use super::pages::examples;
use super::rights::rights;
use super::site::{MadeUp, serve, serve_to};

/// The document, and a judge of JSON for each schema in it.
pub(crate) struct Described {
    document: Value,
    schemas: Schemas,
    judges: HashMap<String, SchemaIndex>,
}

impl Described {
    pub(crate) fn by(address: SocketAddr) -> Self {
        let answer = Client::to(address).get("/api/v1/openapi.json");
        assert_eq!((answer.status, answer.header("Content-Type")), (200, Some("application/json")));
        let document: Value = serde_json::from_str(answer.text()).unwrap();
        let mut definitions = document["components"]["schemas"].clone();
        close(&mut definitions);
        let text = definitions.to_string().replace("#/components/schemas/", "#/$defs/");
        let definitions: Value = serde_json::from_str(&text).unwrap();
        let (mut schemas, mut judges) = (Schemas::new(), HashMap::new());
        for name in definitions.as_object().unwrap().keys() {
            let whole = serde_json::json!({ "$ref": format!("#/$defs/{name}"), "$defs": definitions });
            let place = format!("http://schemas.example/{name}.json");
            let mut compiler = Compiler::new();
            compiler.add_resource(&place, whole).unwrap();
            judges.insert(name.clone(), compiler.compile(&place, &mut schemas).unwrap());
        }
        Self { document, schemas, judges }
    }

    /// Returns the fault in the data of an event, if there is one.
    pub(crate) fn judge_event(&self, data: &Value) -> Result<(), String> {
        self.schemas.validate(data, self.judges["News"]).map_err(|error| format!("{error}: {data}"))
    }

    /// Returns the fault in a response, if there is one.
    pub(crate) fn judge(&self, path: &str, method: &str, response: &Response) -> Result<(), String> {
        let operation = &self.document["paths"][path][method.to_ascii_lowercase()];
        if operation.is_null() {
            // 401, 403 and 429 come first: a client without the right learns nothing.
            return match response.status {
                405 if response.header("Allow").is_some() => Ok(()),
                401 | 403 | 404 | 429 => Ok(()),
                other => Err(format!("{other} to a method that is not described")),
            };
        }
        let told = &operation["responses"][response.status.to_string()];
        if told.is_null() {
            return Err(format!(
                "{} is not described: {}",
                response.status,
                String::from_utf8_lossy(&response.body)
            ));
        }
        let Some(content) = told["content"].as_object() else {
            return if response.body.is_empty() {
                Ok(())
            } else {
                Err("a body that is not described".to_owned())
            };
        };
        let kind = response.header("Content-Type").ok_or("no type")?;
        let schema = &content.get(kind).ok_or_else(|| format!("the type {kind} is not described"))?["schema"];
        if kind != "application/json" {
            return Ok(());
        }
        let value: Value = serde_json::from_slice(&response.body).map_err(|error| error.to_string())?;
        let Some(reference) = schema["$ref"].as_str() else { return Ok(()) };
        let name = reference.strip_prefix("#/components/schemas/").unwrap();
        self.schemas.validate(&value, self.judges[name]).map_err(|error| format!("{error}: {value}"))
    }
}

/// Lets objects have no field that is not described.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.values_mut().for_each(close);
            if fields.get("properties").is_some_and(Value::is_object) && fields.contains_key("type") {
                fields.insert("additionalProperties".to_owned(), Value::Bool(false));
            }
        }
        Value::Array(list) => list.iter_mut().for_each(close),
        _ => {}
    }
}

/// Calls `each` with every object in a document that has this field.
fn with_field(value: &Value, field: &str, each: &mut impl FnMut(&Value)) {
    match value {
        Value::Object(fields) => {
            if fields.contains_key(field) {
                each(value);
            }
            fields.values().for_each(|value| with_field(value, field, each));
        }
        Value::Array(list) => list.iter().for_each(|value| with_field(value, field, each)),
        _ => {}
    }
}

#[test]
fn openapi_paths_match_router() {
    let (_web, address, _) = serve(&films().site, WebLimits::default());
    let described = Described::by(address);
    let document = &described.document;
    assert_eq!(document["openapi"], "3.1.0");
    let paths: BTreeSet<&str> = document["paths"].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(paths, millrace_web::routes().collect());
    // Every placeholder in a path is one of its parameters, names of operations are unique, and
    // every reference resolves.
    for (path, item) in document["paths"].as_object().unwrap() {
        let places: Vec<&str> = path.split('{').skip(1).map(|rest| rest.split('}').next().unwrap()).collect();
        let parameters = item["parameters"].as_array().unwrap();
        let named: Vec<&str> =
            parameters.iter().map(|parameter| parameter["name"].as_str().unwrap()).collect();
        assert_eq!(named, places, "{path}");
        assert!(
            parameters.iter().all(|parameter| parameter["in"] == "path" && parameter["required"] == true)
        );
    }
    let mut names = BTreeSet::new();
    with_field(document, "operationId", &mut |operation| {
        let name = operation["operationId"].as_str().unwrap().to_owned();
        assert!(names.insert(name.clone()), "{name} is there twice");
        for (status, response) in operation["responses"].as_object().unwrap() {
            assert!(!response["description"].as_str().unwrap().is_empty(), "{name} {status}");
        }
    });
    assert!(names.len() >= 3 * paths.len(), "{names:?}");
    with_field(document, "$ref", &mut |reference| {
        let to = reference["$ref"].as_str().unwrap().strip_prefix('#').unwrap();
        assert!(document.pointer(to).is_some(), "{to}");
    });
}

#[test]
fn openapi_describes_actual_responses() {
    let (_web, address, _) = serve(&films().site, WebLimits::default());
    let described = Described::by(address);
    for (route, path) in examples(&mut Client::to(address)) {
        let methods = described.document["paths"][route].as_object().unwrap();
        for method in methods.keys().map(|name| name.to_ascii_uppercase()) {
            if ["SUMMARY", "PARAMETERS"].contains(&&method[..]) {
                continue;
            }
            let response = Client::to(address).ask(&method, &path, "");
            let judged = described.judge(route, &method, &response);
            // There is no upload and no change, no user has signed in, and the title exists.
            let leads_nowhere = ["/titles/{name}", "/api/v1/user"].contains(&route)
                || ["PUT", "POST", "PATCH"].contains(&&method[..]);
            assert!(
                judged.is_ok() && (response.status < 400 || leads_nowhere) || route == "/hls.js",
                "{method} {path}: {judged:?}"
            );
        }
    }
    // With everything in its lists.
    let site = std::sync::Arc::new(MadeUp { sessions: 3, ..MadeUp::default() });
    let (_web, address, _) = serve(&site, WebLimits::default());
    let response = Client::to(address).get("/api/v1/status");
    assert_eq!(described.judge("/api/v1/status", "GET", &response), Ok(()));
    // The judge can say no.
    let mut other = response.clone();
    other.body = String::from_utf8(other.body).unwrap().replace("\"used\"", "\"usedd\"").into_bytes();
    assert!(described.judge("/api/v1/status", "GET", &other).is_err());
    other.status = 418;
    assert!(described.judge("/api/v1/status", "GET", &other).is_err());
}

/// A request: a path of the document, what stands in its places, and the rest.
#[derive(Clone, Debug)]
struct Asked {
    method: String,
    route: String,
    path: String,
    lines: String,
    body: Vec<u8>,
}

fn any_request(document: &Value, versions: [String; 2]) -> impl Strategy<Value = Asked> {
    let routes: Vec<String> = document["paths"].as_object().unwrap().keys().cloned().collect();
    let of = |list: &[&str]| {
        let list: Vec<String> = list.iter().map(|text| (*text).to_owned()).collect();
        proptest::sample::select(list)
    };
    let method = prop_oneof![
        3 => of(&["GET", "HEAD"]),
        1 => of(&["OPTIONS", "POST", "PUT", "PATCH", "DELETE", "TRACE", "BREW"]),
    ];
    let name = prop_oneof![
        4 => of(&["film", "joined"]),
        1 => of(&["none", "film@540p", "film%40540p", ".film", "..", "%2e%2e", "film%00", "fi%C3%BClm", "film%2f"]),
        1 => "[A-Za-z0-9._@%~!$&'()*+,;=:-]{1,40}",
    ];
    let version = prop_oneof![4 => proptest::sample::select(versions.to_vec()), 1 => "[A-Za-z0-9.@-]{1,20}"];
    let track = prop_oneof![4 => of(&["256", "257"]), 1 => of(&["0", "65535", "65536", "-1", "0256", "x"])];
    let number =
        prop_oneof![4 => of(&["0", "1", "2"]), 1 => of(&["4294967295", "4294967296", "01", "-1", "1e3"])];
    let query = prop_oneof![
        3 => Just(String::new()),
        1 => of(&["?", "?until=1&sign=x", "?until=9999999999&sign=", "?sign=%00", "?a=b&a=b"]),
        1 => "[?][A-Za-z0-9%=&._~-]{0,60}",
    ];
    let line = prop_oneof![
        "Range: bytes=[0-9]{0,12}-[0-9]{0,12}",
        "Range: (bytes|seconds)=[0-9, -]{0,20}",
        "(If-Match|If-None-Match|If-Range): ([*]|\"[a-z0-9-]{0,12}\"|W/\"x\"|x)",
        "(If-Modified-Since|If-Unmodified-Since): (Sun, 06 Nov 1994 08:49:37 GMT|Sat, 06 Nov 2094 08:49:37 GMT|yesterday)",
        "Authorization: (Basic|Bearer|Digest|x)( [A-Za-z0-9+/=]{0,60})?",
        "(X-Forwarded-For|Origin|Accept|Accept-Encoding|Cookie): [ -~]{0,40}",
    ];
    let lines = proptest::collection::vec(line, 0..4);
    let body = prop_oneof![3 => Just(Vec::new()), 1 => proptest::collection::vec(any::<u8>(), 1..600)];
    let places = (name, version, track, number);
    (method, proptest::sample::select(routes), places, query, lines, body).prop_map(
        |(method, route, (name, version, track, number), query, lines, body)| {
            let filled = route.replace("{name}", &name).replace("{version}", &version);
            let filled = filled.replace("{file}", "de.vtt");
            let path = filled.replace("{track}", &track).replace("{number}", &number) + &query;
            let mut lines: String = lines.iter().map(|line| format!("{}\r\n", line.trim_end())).collect();
            if !body.is_empty() {
                lines.push_str(&format!("Content-Length: {}\r\n", body.len()));
            }
            Asked { method, route, path, lines, body }
        },
    )
}

/// Versions in addresses of segments of `film`, cut and made.
fn versions(address: SocketAddr) -> [String; 2] {
    let examples = examples(&mut Client::to(address));
    let of = |route: &str| examples.iter().find(|(other, _)| *other == route).unwrap().1.clone();
    let cut = of("/titles/{name}/hls/{version}/{number}.ts");
    let made = of("/titles/{name}/cmaf/{version}/{track}/{number}.m4s");
    [cut.split('/').nth(4).unwrap().to_owned(), made.split('/').nth(4).unwrap().to_owned()]
}

/// Whatever is asked of any address, with rights and without: no failure of the server, and an answer as described.
#[test]
fn openapi_describes_response_to_any_request() {
    let site = &films().site;
    // Nothing is uploaded, which would be there for other tests.
    let limits = WebLimits { upload_bytes: 0, ..WebLimits::default() };
    let (_open, open, _) = serve(site, limits);
    let guarded_by = rights();
    let (_guarded, guarded, _) = serve_to(site, limits, &guarded_by.gate);
    let described = Described::by(open);
    let requests = (any_request(&described.document, versions(open)), any::<bool>());
    let mut runner = TestRunner::new(Config { source_file: Some(file!()), ..Config::default() });
    let seen = RefCell::new(BTreeSet::new());
    let done = runner.run(&requests, |(asked, is_open)| {
        let Asked { method, route, path, lines, body } = &asked;
        let mut client = Client::to(if is_open { open } else { guarded });
        let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n");
        client.send([head.as_bytes(), body].concat());
        let response = client.response(method == "HEAD");
        // Listeners that have gone are noticed within a second.
        let is_full = route == "/api/v1/events" && response.status == 503;
        prop_assert!(response.status < 500 || is_full, "{}: {:?}", response.status, asked);
        let judged = described.judge(route, method, &response);
        prop_assert!(judged.is_ok(), "{judged:?}: {asked:?}");
        seen.borrow_mut().insert(response.status);
        Ok(())
    });
    done.unwrap_or_else(|error| panic!("{error}"));
    // Some were let in, some were not.
    let seen = seen.into_inner();
    assert!([200, 401, 404, 405].iter().all(|status| seen.contains(status)), "{seen:?}");
}
