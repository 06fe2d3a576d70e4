//! The dashboard as a program, against servers of the tests' own.
//!
//! `place` starts it, `http` speaks with it byte by byte. Without a browser: `access` (what gets in, what is refused),
//! `bounds` (what one viewer, or a stranger, can take from the others), `logins`, `roles`, `pages` (what is shown),
//! `verbs` (what is done), `pooler` (behind PgBouncer), `demo` (how `make web` ends). With Debian's chromium, which
//! `browser` starts: `clicks` (each page and verb, by mouse and by keyboard), `phone` (nothing is cut off), `details`
//! (what a page says of one flow, job, queue or worker), `reading` (what is seen first, and told apart), `statements`
//! (what the server is asked meanwhile), `site` (the pages that `make site` has built), `strange` (names and texts full
//! of markup), `pictures`.

mod access;
mod bounds;
mod browser;
mod clicks;
mod demo;
mod details;
mod http;
mod log;
mod logins;
mod pages;
mod phone;
mod pictures;
mod place;
mod pooler;
mod reading;
mod roles;
mod scene;
mod site;
mod statements;
mod strange;
mod verbs;
