//! The edge: where messages become events, or are refused with words.
//!
//! Who asks is known from the socket, never from a field.

pub mod api;
pub mod link;
mod messages;
mod outgoing;
mod requests;
pub mod sockets;
mod status;
pub mod terminal;
