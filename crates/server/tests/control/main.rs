//! The control plane in the process of the test: RTSP from request to reply, and the service behind it, mostly in virtual time.

mod fuzz_rtsp;
mod rtsp_admission;
mod rtsp_control;
mod rtsp_fake_engine;
mod rtsp_fec;
mod rtsp_life;
mod rtsp_methods;
mod rtsp_opening;
mod rtsp_overload;
mod rtsp_packet_sizes;
mod rtsp_players;
mod rtsp_rendition;
mod rtsp_rights;
mod rtsp_scale;
mod rtsp_support;
mod service_adapt;
mod service_bytes;
mod service_engines;
mod service_fec_room;
mod service_fetch;
mod service_refusals;
mod service_rendition;
mod service_scale;
mod service_streams;
mod service_support;
mod service_viewers;
