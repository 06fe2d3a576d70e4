//! An artificial earlier version from which tests upgrade: this version without what `CHANGES` lists.
//!
//! Responsible for the script of that version, and for the upgrade script from it to this version. `upgrade` makes that
//! script like every other one. Not responsible for released versions (`frozen`).
//!
//! Invariant: `CHANGES` has each kind of change that an upgrade can bring: a column of a table, other columns of a
//! view, other arguments and other results of a function, another comment.

use std::path::Path;

use eyre::{Result, bail};

use crate::files::{CLUSTER, EXTENSION, read, root, version};
use crate::install;
use crate::script::{self, FOR_CLUSTERS, QUEUE};
use crate::upgrade::{self, Step};

/// A version number that no release has.
const VERSION: &str = "0.0.1";

/// The folder of the transitions. They are written by hand, as those of releases are.
const FOLDER: &str = "xtask/src/earlier";

/// The extension, a text of its sources, and that text in the earlier version.
const CHANGES: [(&str, &str, &str); 8] = [
    (
        EXTENSION,
        "\"char\"      NOT NULL,\n                worker          text,\n                cost            integer\n",
        "\"char\"      NOT NULL\n",
    ),
    (
        EXTENSION,
        ", settings jsonb DEFAULT NULL\n    -- end of arguments of queue\n) RETURNS void LANGUAGE c AS \
            'MODULE_PATHNAME', 'pg_queue_create'",
        "\n) RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_create'",
    ),
    (EXTENSION, "timestamptz, is_cancelled boolean)\n    LANGUAGE c ROWS 100", "timestamptz)\n    LANGUAGE c ROWS 100"),
    (EXTENSION, "fair_share, rate_cost\nFROM", "fair_share\nFROM"),
    (
        EXTENSION,
        "COMMENT ON COLUMN queue.queues.rate_cost IS\n    'The jsonpath of what a job counts for rate_limit and \
            rate_limit_per_group; null: each counts as 1.';\n",
        "",
    ),
    (
        EXTENSION,
        "            COMMENT ON COLUMN queue_internal.claim_%1$s.cost IS\n                \
            'What it counts for the rates of its queue; null: 1.';\n",
        "",
    ),
    (EXTENSION, "COMMENT ON FUNCTION queue.pause IS\n", "COMMENT ON FUNCTION queue.pause IS 'It was: '\n"),
    (CLUSTER, "COMMENT ON SCHEMA queue_cluster IS '", "COMMENT ON SCHEMA queue_cluster IS 'It was: "),
];

/// Installs both scripts into the server of `pg_config`, for pg_queue and pg_queue_cluster.
pub fn install(pg_config: &Path) -> Result<()> {
    let version = version()?;
    for sources in [QUEUE, FOR_CLUSTERS] {
        let extension = sources.extension;
        let now = sources.text()?;
        let earlier = earlier(extension, &now)?;
        let file = |end: &str| root().join(FOLDER).join(format!("{extension}{end}.sql"));
        let last = file(".after");
        let step = Step {
            from: VERSION,
            to: &version,
            released: &earlier,
            transition: &read(&file(""))?,
            last: &if last.exists() { read(&last)? } else { String::new() },
        };
        let echo = script::echo(&format!("CREATE EXTENSION {extension}"));
        install::script(pg_config, &format!("{extension}--{VERSION}.sql"), &format!("{echo}\n{earlier}"))?;
        install::script(pg_config, &step.name(extension), &upgrade::made(&sources, &step)?)?;
    }
    Ok(())
}

/// Returns the extension's sources in the earlier version.
fn earlier(extension: &str, sources: &str) -> Result<String> {
    let mut earlier = sources.to_owned();
    for (_, now, before) in CHANGES.iter().filter(|(of, ..)| *of == extension) {
        if earlier.matches(now).count() != 1 {
            bail!("the sources of {extension} do not have this once: {now}");
        }
        earlier = earlier.replace(now, before);
    }
    Ok(earlier)
}
