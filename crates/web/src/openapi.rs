//! `/api/v1/openapi.json`: every address, described in OpenAPI 3.1 for programs that make clients and tests of it.
//!
//! It is made of the table of routes and of the types that responses are written from, once, when it is asked for first.

use std::sync::OnceLock;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::answer::{Answer, Failure};
use crate::conditions;
use crate::events::SiteEvent;
use crate::handlers::api::{M3U, TitleChange, TitleListing, User};
use crate::handlers::chapters::Chapter;
use crate::handlers::events::EVENT_STREAM;
use crate::handlers::guide::XML;
use crate::handlers::live::LiveList;
use crate::handlers::reload::RefusedReload;
use crate::handlers::status::Whole;
use crate::handlers::title::TitleDescription;
use crate::handlers::tuner::{LineupChannel, LineupStatus, TunerDevice};
use crate::hls::text::{M3U8, Text};
use crate::metrics;
use crate::reload::ReloadReport;
use crate::request::{Method, Request};
use crate::route::{Needs, ROUTES, ResourceKind, Route};
use crate::site::{LiveRecording, LiveStatus, NewLiveSource, RecordingWish};
use crate::uploads::{Listed, Upload};

/// Addresses of schemas begin with this.
const SCHEMAS: &str = "/components/schemas";

/// Statuses of any address that checks rights: the client is unknown, lacks the right, has failed
/// too often, or must wait.
const OF_RIGHTS: [u16; 4] = [401, 403, 429, 503];

/// Statuses of uploads that became no title.
const OF_UPLOADS: [u16; 9] = [400, 404, 408, 409, 412, 413, 415, 422, 507];

/// Error statuses of changes to a title.
const OF_CHANGES: [u16; 5] = [400, 404, 408, 413, 500];

/// Error statuses of live sources that were not added.
const OF_NEW_SOURCES: [u16; 6] = [400, 408, 409, 413, 415, 500];

/// Error statuses of reloads.
const OF_RELOADS: [u16; 4] = [400, 408, 413, 415];

/// Success and error statuses of subtitle changes and of title deletions.
fn of_change(kind: ResourceKind, method: Method) -> (&'static [u16], &'static [u16]) {
    match (kind, method) {
        (ResourceKind::SubtitleFile, Method::Put) => (&[201, 204], &[400, 404, 408, 413, 507]),
        (ResourceKind::SubtitleFile, _) => (&[204], &[400, 404, 500]),
        (ResourceKind::ApiLiveTitle, _) => (&[204], &[404, 409, 500]),
        (ResourceKind::LiveInput, _) => (&[204], &[400, 404, 408, 409, 415]),
        (ResourceKind::LiveRecording, Method::Put) => (&[201], &[400, 404, 408, 409, 413, 507]),
        (ResourceKind::LiveRecording, _) => (&[200], &[404]),
        _ => (&[204], &[404, 500]),
    }
}

/// Contents of a successful response, and the other responses.
struct Told {
    /// Media types.
    types: &'static [&'static str],
    schema: Option<Value>,
    how: How,
    /// Statuses of errors that the address has of its own.
    errors: &'static [u16],
}

/// Which conditions of a request count.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Plain,
    /// Whether the client has it already.
    Tagged,
    /// That, and which bytes of it are wanted.
    Ranged,
}

pub(crate) fn answer(request: &Request) -> Answer {
    static TEXT: OnceLock<Text> = OnceLock::new();
    let text = TEXT.get_or_init(|| Text::new(document().to_string() + "\n"));
    conditions::tagged(request, text.tag.clone(), || Answer::new(200, "application/json", text.bytes.clone()))
}

fn document() -> Value {
    let settings = SchemaSettings::draft2020_12().for_serialize().with(|settings| {
        settings.definitions_path = SCHEMAS.into();
        settings.meta_schema = None;
    });
    let mut schemas = settings.into_generator();
    let error = reference::<Failure>(&mut schemas);
    let title = reference::<TitleDescription>(&mut schemas);
    reference::<TitleChange>(&mut schemas);
    reference::<RecordingWish>(&mut schemas);
    reference::<NewLiveSource>(&mut schemas);
    reference::<RefusedReload>(&mut schemas);
    let paths: Map<String, Value> = ROUTES
        .iter()
        .map(|route| {
            let told = told(route.kind, &mut schemas);
            let methods = route.methods().iter().map(|&method| {
                (method.name().to_ascii_lowercase(), operation(route, method, &told, (&error, &title)))
            });
            let mut item: Map<String, Value> = methods.collect();
            item.insert("summary".to_owned(), json!(route.what));
            item.insert("parameters".to_owned(), parameters_of_path(route.path));
            (route.path.to_owned(), Value::Object(item))
        })
        .collect();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Millrace",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Titles over HTTP. Heads of requests that are not understood are answered with 400, 408, 414, 431 or 505 at every address, \
                            methods that are not listed with 405. Below /api/v1 fields are only ever added.",
        },
        "servers": [{ "url": "/" }],
        "paths": paths,
        "components": {
            "schemas": schemas.take_definitions(true),
            "securitySchemes": {
                "basic": { "type": "http", "scheme": "basic" },
                "bearer": { "type": "http", "scheme": "bearer" },
            },
        },
    })
}

/// A schema of this type by its name.
fn reference<T: JsonSchema>(schemas: &mut SchemaGenerator) -> Value {
    schemas.subschema_for::<T>().to_value()
}

fn told(kind: ResourceKind, schemas: &mut SchemaGenerator) -> Told {
    use How::{Plain, Ranged, Tagged};
    let of = |types, how, errors| Told { types, schema: None, how, errors };
    let of_json = |schema, errors| Told { schema: Some(schema), ..of(&["application/json"], Plain, errors) };
    match kind {
        ResourceKind::LiveStream | ResourceKind::LiveSegment | ResourceKind::LivePart => {
            of(&["video/mp2t"], Plain, &[404, 503])
        }
        ResourceKind::LiveMaster | ResourceKind::LivePlaylist | ResourceKind::LivePartsMaster => {
            of(&[M3U8], Tagged, &[404, 503])
        }
        ResourceKind::LivePartsPlaylist => of(&[M3U8], Tagged, &[400, 404, 503]),
        ResourceKind::LiveInput | ResourceKind::ApiLiveTitle => {
            of_json(reference::<LiveStatus>(schemas), &[404])
        }
        ResourceKind::LiveRecording => of_json(reference::<LiveRecording>(schemas), &[404]),
        ResourceKind::ApiLive => of_json(reference::<LiveList>(schemas), &[]),
        ResourceKind::File | ResourceKind::Segment => of(&["video/mp2t"], Ranged, &[404, 500, 503]),
        ResourceKind::Master | ResourceKind::Media | ResourceKind::Cmaf | ResourceKind::CmafMedia => {
            of(&[M3U8], Tagged, &[404, 500, 503])
        }
        ResourceKind::CmafStills | ResourceKind::Subtitles | ResourceKind::CmafSubtitles => {
            of(&[M3U8], Tagged, &[404, 500])
        }
        ResourceKind::SubtitleSegment | ResourceKind::CmafSubtitleSegment => {
            of(&["text/vtt; charset=utf-8"], Ranged, &[404, 500, 503])
        }
        ResourceKind::SubtitleFile => of(&["text/vtt; charset=utf-8"], Tagged, &[404, 500]),
        ResourceKind::CmafInit | ResourceKind::CmafSegment => {
            of(&["video/mp4", "audio/mp4"], Ranged, &[404, 500, 503])
        }
        ResourceKind::CmafStill => of(&["video/mp4"], Ranged, &[404, 500, 503]),
        ResourceKind::Chapters => of_json(reference::<Vec<Chapter>>(schemas), &[404]),
        ResourceKind::Poster | ResourceKind::Sprites => of(&["image/jpeg"], Tagged, &[404]),
        ResourceKind::SpritesVtt => of(&["text/vtt; charset=utf-8"], Tagged, &[404]),
        ResourceKind::Page => of(&["text/html; charset=utf-8"], Plain, &[]),
        ResourceKind::Style => of(&["text/css; charset=utf-8"], Plain, &[]),
        ResourceKind::Script => of(&["text/javascript; charset=utf-8"], Plain, &[]),
        ResourceKind::Icon => of(&["image/svg+xml"], Plain, &[]),
        ResourceKind::QrCode => of(&["image/svg+xml"], Plain, &[400]),
        ResourceKind::Player => of(&["text/javascript; charset=utf-8"], Tagged, &[404]),
        ResourceKind::ApiUser => of_json(reference::<User>(schemas), &[404]),
        ResourceKind::Playlist | ResourceKind::TvPlaylist => of(&[M3U], Plain, &[]),
        ResourceKind::Guide => of(&[XML], Plain, &[500]),
        ResourceKind::TunerDevice => of_json(reference::<TunerDevice>(schemas), &[400]),
        ResourceKind::TunerLineup => of_json(reference::<Vec<LineupChannel>>(schemas), &[400]),
        ResourceKind::TunerStatus => of_json(reference::<LineupStatus>(schemas), &[]),
        ResourceKind::ApiTitles => {
            Told { how: Tagged, ..of_json(reference::<TitleListing>(schemas), &[500, 503]) }
        }
        ResourceKind::ApiTitle => of_json(reference::<TitleDescription>(schemas), &[404]),
        ResourceKind::ApiReload => of_json(reference::<ReloadReport>(schemas), &[]),
        ResourceKind::ApiStatus => of_json(reference::<Whole>(schemas), &[503]),
        ResourceKind::Upload => of_json(reference::<Upload>(schemas), &[404, 410]),
        ResourceKind::ApiUploads => of_json(reference::<Listed>(schemas), &[]),
        ResourceKind::ApiEvents => {
            Told { schema: Some(reference::<SiteEvent>(schemas)), ..of(&[EVENT_STREAM], Plain, &[503]) }
        }
        ResourceKind::ApiDescription => {
            Told { how: Tagged, ..of_json(json!({ "type": "object", "required": ["openapi"] }), &[]) }
        }
        ResourceKind::Metrics => of(&[metrics::TEXT], Plain, &[]),
        ResourceKind::Live => of(&["text/plain"], Plain, &[]),
        ResourceKind::Ready => of(&["text/plain"], Plain, &[503]),
    }
}

/// Names of the parameters in a query.
fn query_of(route: &Route, method: Method) -> &'static [&'static str] {
    match (method, route.kind, route.needs) {
        (Method::Put, ResourceKind::Upload | ResourceKind::File, _) => &["replace"],
        (Method::Get | Method::Head, ResourceKind::QrCode, _) => &["text"],
        (Method::Get | Method::Head, ResourceKind::LivePartsPlaylist, _) => {
            &["_HLS_msn", "_HLS_part", "until", "sign"]
        }
        (Method::Get | Method::Head, _, Needs::Watch) => &["until", "sign"],
        _ => &[],
    }
}

/// Whether [`of_change`] has the answers to a request.
fn has_own_answer(kind: ResourceKind, method: Method) -> bool {
    use ResourceKind::{LiveInput, LiveRecording, SubtitleFile};
    let is_put = matches!(method, Method::Put | Method::Post);
    method == Method::Delete || is_put && matches!(kind, SubtitleFile | LiveInput | LiveRecording)
}

/// One method of an address.
fn operation(route: &Route, method: Method, told: &Told, (error, title): (&Value, &Value)) -> Value {
    let mut responses = Map::new();
    let mut respond = |status: u16, content: Option<Value>| {
        let reason = hyper::StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason());
        let mut response = Map::from_iter([("description".to_owned(), json!(reason.unwrap_or_default()))]);
        response.extend(content.map(|content| ("content".to_owned(), content)));
        responses.insert(status.to_string(), Value::Object(response));
    };
    let has_body = method != Method::Head;
    let failure = || has_body.then(|| json!({ "application/json": { "schema": error } }));
    let content = || {
        let schema = told.schema.clone().unwrap_or_else(|| json!({}));
        let types = told.types.iter().map(|name| ((*name).to_owned(), json!({ "schema": schema })));
        has_body.then(|| Value::Object(types.collect()))
    };
    let mut parameters = Vec::new();
    let rights = if route.needs == Needs::Nothing { &[][..] } else { &OF_RIGHTS[..] };
    if method == Method::Options {
        respond(204, None);
        // What stands in the places may lead nowhere.
        if route.path.contains('{') {
            respond(404, failure());
        }
    } else if has_own_answer(route.kind, method) {
        let (done, errors) = of_change(route.kind, method);
        let is_recording = route.kind == ResourceKind::LiveRecording;
        done.iter().for_each(|&status| respond(status, is_recording.then(|| json_of("LiveRecording"))));
        errors.iter().chain(rights).for_each(|&status| respond(status, failure()));
    } else if route.kind == ResourceKind::ApiReload && method == Method::Post {
        respond(200, content());
        respond(422, Some(json_of("RefusedReload")));
        OF_RELOADS.iter().chain(rights).for_each(|&status| respond(status, failure()));
    } else if method == Method::Post {
        respond(201, Some(json_of("LiveStatus")));
        OF_NEW_SOURCES.iter().chain(rights).for_each(|&status| respond(status, failure()));
    } else if method == Method::Put {
        respond(201, has_body.then(|| json!({ "application/json": { "schema": title } })));
        respond(202, None);
        OF_UPLOADS.iter().chain(rights).for_each(|&status| respond(status, failure()));
        parameters.extend(["Content-Range", "If-Match", "If-None-Match"].map(header));
    } else if method == Method::Patch {
        respond(200, content());
        OF_CHANGES.iter().chain(rights).for_each(|&status| respond(status, failure()));
    } else {
        respond(200, content());
        if told.how != How::Plain {
            respond(304, None);
            respond(412, failure());
            parameters.extend(["If-Match", "If-None-Match"].map(header));
        }
        if told.how == How::Ranged {
            parameters.extend(["If-Modified-Since", "If-Unmodified-Since"].map(header));
        }
        // Ranges are for GET (RFC 9110 section 14.2).
        if told.how == How::Ranged && method == Method::Get {
            respond(206, content());
            respond(416, failure());
            parameters.extend(["Range", "If-Range"].map(header));
        }
        told.errors.iter().chain(rights).for_each(|&status| respond(status, failure()));
    }
    let of_query = |name: &&str| parameter("query", name, json!({ "type": "string" }));
    parameters.extend(query_of(route, method).iter().map(of_query));
    let mut operation = described(route, method, responses, parameters);
    if route.needs != Needs::Nothing && method != Method::Options {
        // Also without any: the operator decides which clients need none.
        operation["security"] = json!([{}, { "basic": [] }, { "bearer": [] }]);
    }
    operation
}

/// An operation: its name, its responses, its parameters and its request body.
fn described(route: &Route, method: Method, responses: Map<String, Value>, parameters: Vec<Value>) -> Value {
    let id = format!("{}{:?}", method.name().to_ascii_lowercase(), route.kind);
    let mut operation = json!({ "operationId": id, "responses": responses });
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if let Some(body) = request_body(route, method) {
        operation["requestBody"] = body;
    }
    operation
}

/// The request body of a method, if it has one.
fn request_body(route: &Route, method: Method) -> Option<Value> {
    match method {
        Method::Put if route.kind == ResourceKind::SubtitleFile => {
            Some(json!({ "content": { "text/vtt": {}, "application/x-subrip": {} } }))
        }
        Method::Put if route.kind == ResourceKind::LiveRecording => {
            Some(json!({ "required": false, "content": json_of("RecordingWish") }))
        }
        Method::Post if route.kind == ResourceKind::ApiLive => Some(json_body("NewLiveSource")),
        Method::Post if route.kind == ResourceKind::ApiReload => {
            Some(json!({ "required": false, "content": { "application/json": {} } }))
        }
        Method::Put | Method::Post => Some(json!({ "content": { "video/mp2t": {} } })),
        Method::Patch => Some(json_body("TitleChange")),
        _ => None,
    }
}

/// A request body of this schema.
fn json_body(schema: &str) -> Value {
    json!({ "required": true, "content": json_of(schema) })
}

/// The content of this schema.
fn json_of(schema: &str) -> Value {
    json!({ "application/json": { "schema": { "$ref": format!("#{SCHEMAS}/{schema}") } } })
}

/// What stands for something in a path.
fn parameters_of_path(path: &str) -> Value {
    let places = path.split('{').skip(1).filter_map(|rest| rest.split_once('}'));
    let list = places.map(|(name, _)| {
        let schema = match name {
            "track" => json!({ "type": "integer", "minimum": 0, "maximum": u16::MAX }),
            "number" => json!({ "type": "integer", "minimum": 0, "maximum": u32::MAX }),
            _ => json!({ "type": "string", "pattern": "^[A-Za-z0-9_@-][A-Za-z0-9._@-]*$" }),
        };
        parameter("path", name, schema)
    });
    list.collect()
}

fn header(name: &str) -> Value {
    parameter("header", name, json!({ "type": "string" }))
}

fn parameter(place: &str, name: &str, schema: Value) -> Value {
    json!({ "in": place, "name": name, "required": place == "path", "schema": schema })
}
