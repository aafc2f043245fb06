// Times as Airflow shows them: in the zone that its user has chosen, else that of the browser.
const { useEffect, useState } = globalThis.React;

const KEY = "timezone"; // of Airflow's own page, in the browser's store
/** @type {Map<string, Intl.DateTimeFormat>} */
const formats = new Map();

/** @param {string} zone */
function format(zone) {
  const known = formats.get(zone);
  if (known) return known;
  const made = new Intl.DateTimeFormat("en-GB", {
    timeZone: zone, hourCycle: "h23", year: "numeric", month: "2-digit", day: "2-digit",
    hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "longOffset",
  });
  formats.set(zone, made);
  return made;
}

/** The name of the zone. */
export function zone() {
  try {
    const chosen = JSON.parse(globalThis.localStorage.getItem(KEY) ?? "null");
    if (typeof chosen === "string" && format(chosen)) return chosen;
  } catch { /* what is there is no zone that this browser knows */ }
  return new Intl.DateTimeFormat().resolvedOptions().timeZone;
}

/** The same, as a hook: renders again when another zone is chosen, here or in another window. */
export function useZone() {
  const [, setTimes] = useState(0);
  useEffect(() => {
    const again = () => setTimes((n) => n + 1);
    const events = ["storage", "local-storage"]; // Airflow sends the latter to its own window
    for (const each of events) globalThis.addEventListener(each, again);
    return () => { for (const each of events) globalThis.removeEventListener(each, again); };
  }, []);
  return zone();
}

/** @param {Date} time */
const parts = (time) => Object.fromEntries(format(zone()).formatToParts(time).map(({ type, value }) => [type, value]));

/**
 * As people read it, with how far the zone is from UTC.
 * @param {string} at
 */
export function when(at) {
  if (!at) return "";
  const { year, month, day, hour, minute, second, timeZoneName } = parts(new Date(at));
  return `${year}-${month}-${day} ${hour}:${minute}:${second} ${timeZoneName.replace(/^GMT(\+00:00)?/, "") || "UTC"}`;
}

/**
 * As a field for times has it, to the minute.
 * @param {string} at
 */
export function local(at) {
  if (!at || Number.isNaN(Date.parse(at))) return "";
  const { year, month, day, hour, minute } = parts(new Date(at));
  return `${year}-${month}-${day}T${hour}:${minute}`;
}

/** @param {number} time milliseconds */
function offset(time) {
  const found = /GMT([+-])(\d\d):(\d\d)/.exec(parts(new Date(time)).timeZoneName);
  return found ? (found[1] === "-" ? -60_000 : 60_000) * (60 * Number(found[2]) + Number(found[3])) : 0;
}

/**
 * The inverse of `local`: the end of that minute; "" for what is no time.
 * @param {string} text
 */
export function instant(text) {
  const clock = Date.parse(`${text}:59.999Z`);
  if (Number.isNaN(clock)) return "";
  const near = clock - offset(clock);
  return new Date(clock - offset(near)).toISOString();
}
