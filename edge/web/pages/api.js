// Management API: requests of the pages. Owns the session, with its CSRF token.

export const session = { user: "", role: "anonymous", login: false, reads: true, csrf: "" };
const RANKS = { anonymous: 0, viewer: 1, operator: 2, admin: 3 };

export class ApiError extends Error {
  constructor(status, error, hint) {
    super(error);
    this.status = status;
    this.hint = hint ?? "";
  }
}

export function may(role) {
  return session.login && RANKS[session.role] >= RANKS[role];
}

async function answer(response) {
  const type = response.headers.get("Content-Type") ?? "";
  const content = type.startsWith("application/json") ? await response.json() : {};
  if (response.ok) return content;
  if (response.status === 401 && session.user) {
    session.user = "";
    dispatchEvent(new Event("sessionend"));
  }
  throw new ApiError(response.status, content.error ?? response.statusText, content.hint);
}

async function send(path, options) {
  try {
    return await fetch(`/api/v1/${path}`, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "the console does not answer", "start it again: brim web");
  }
}

function query(parameters) {
  const given = Object.entries(parameters ?? {}).filter(([, value]) => value !== "" && value !== undefined);
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

export async function get(path, parameters) {
  return answer(await send(path + query(parameters)));
}

export async function change(method, path, body, signal) {
  const headers = { "Content-Type": "application/json", "X-CSRF-Token": session.csrf };
  return answer(await send(path, { method, headers, signal, body: JSON.stringify(body ?? {}) }));
}

export const post = (path, body, signal) => change("POST", path, body, signal);

export async function loadSession() {
  Object.assign(session, await get("session"));
}

export async function logIn(user, password) {
  Object.assign(session, await post("session", { user, password }));
}

export async function logOut() {
  await change("DELETE", "session");
  await loadSession();
}

// Calls `each` for every object of an endless answer, until it ends or `signal` aborts it.
export async function follow(path, parameters, signal, each) {
  const response = await send(path + query(parameters), { signal });
  if (!response.ok) await answer(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line) each(JSON.parse(line));
  }
}
