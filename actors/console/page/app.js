// Which view is shown, and who looks at it.
import { get, post } from "./api.js";
import { h, say } from "./dom.js";

const VIEWS = [
  { name: "overview", title: "Overview", operators: true },
  { name: "sessions", title: "Sessions", operators: true },
  { name: "topics", title: "Topics" },
  { name: "messages", title: "Messages" },
  { name: "families", title: "Families", operators: true },
  { name: "sql", title: "SQL", operators: true },
];

const main = document.getElementById("main");
let visitor = null;
let leave = () => {};
let turn = 0;

function parsed() {
  const [name, query] = location.hash.slice(1).split("?");
  return { name, parameters: new URLSearchParams(query ?? "") };
}

function allowed() {
  return VIEWS.filter((view) => visitor.operator || !view.operators);
}

function drawHead(current) {
  document.getElementById("views").replaceChildren(...allowed().map((view) =>
    h("a", { href: `#${view.name}`, "aria-current": view.name === current ? "page" : null }, view.title)));
  const who = document.getElementById("who");
  who.replaceChildren(visitor.user || (visitor.operator ? "operator" : "nobody has logged in"), " ",
    h("button", { type: "button", onclick: visitor.user || visitor.cookie ? logOut : askWho },
      visitor.user || visitor.cookie ? "Log out" : "Log in"));
}

// What is open is left; the number of what comes next, to see later whether it still is that.
function next() {
  leave();
  leave = () => {};
  turn += 1;
  return turn;
}

async function route() {
  const mine = next();
  if (visitor === null) return;
  const { name, parameters } = parsed();
  const view = allowed().find((each) => each.name === name) ?? allowed()[0];
  drawHead(view.name);
  document.title = `${view.title} - lexicast`;
  let module;
  try {
    module = await import(`./${view.name}.js`);
  } catch {
    if (mine === turn) unreached("The console cannot be reached. Is the cluster running?", () => location.reload());
    return;
  }
  if (mine !== turn) return;
  const place = h("div", {});
  main.replaceChildren(h("h1", {}, view.title), place);
  leave = module.open(place, { visitor, parameters, failed });
}

function unreached(text, again) {
  main.replaceChildren(h("p", { class: "bad", role: "alert" }, text), h("button", { type: "button", onclick: again }, "Try again"));
}

// What a question came to nothing for; a view that asks again and again says it once.
let lastFailure = "";
function failed(error) {
  if (error.status === 401) {
    visitor = null;
    askWho();
  } else if (error.message !== lastFailure) {
    say(error.message);
  }
  lastFailure = error.message;
  setTimeout(() => { lastFailure = ""; }, 10000);
}

async function logOut() {
  await post("logout").catch(() => {});
  start();
}

function askWho() {
  next();
  document.title = "Log in - lexicast";
  const user = h("input", { name: "user", autocomplete: "username", autocapitalize: "none", spellcheck: "false" });
  const password = h("input", { name: "password", type: "password", autocomplete: "current-password" });
  const wrong = h("p", { class: "bad", role: "alert" });
  const submit = async (event) => {
    event.preventDefault();
    try {
      visitor = await post("login", { user: user.value, password: password.value });
      route();
    } catch (error) {
      wrong.textContent = error.message;
      password.select();
    }
  };
  main.replaceChildren(
    h("h1", {}, "Log in"),
    h("form", { onsubmit: submit },
      h("label", {}, "User", user),
      h("label", {}, "Password, or the operators' token", password),
      h("button", { class: "main", type: "submit" }, "Log in")),
    wrong,
    h("p", { class: "quiet" }, "With the token leave the user empty; ", h("code", {}, "lexicast page --token"),
      " prints it on a node of the cluster."));
  user.focus();
}

async function start() {
  try {
    visitor = await get("me");
    route();
  } catch (error) {
    visitor = null;
    if (error.status === 401) askWho();
    else unreached(error.message, start);
  }
}

const root = document.documentElement;
const kept = localStorage.getItem("theme");
if (kept) root.dataset.theme = kept;
document.getElementById("theme").addEventListener("click", () => {
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
});
window.addEventListener("hashchange", route);
start();
