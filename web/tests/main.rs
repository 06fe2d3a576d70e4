//! The dashboard as a program, against servers of the tests' own.
//!
//! `place` starts it, `http` is the client. Tests without a browser: `access` (accepted and refused requests), `bounds`
//! (limits of one viewer, or of a stranger), `logins`, `roles`, `pages` (answers), `verbs`, `log` (output), `pooler`
//! (behind PgBouncer), `demo` (how `make web` ends). Tests with Debian's chromium, which `browser` starts: `clicks`
//! (each page and verb, by mouse and by keyboard), `phone` (nothing is cut off), `details` (pages of one flow, job,
//! queue or worker), `reading` (what viewers read first), `statements` (the dashboard's SQL), `site` (the pages that
//! `make site` has built), `strange` (names and texts full of markup), `pictures`.

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
