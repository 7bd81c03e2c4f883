// Lines over time, and dots on a map: SVG, told in words to those who do not see it.
import { svg, count, clock } from "./dom.js";

const WIDTH = 640;
const HEIGHT = 200;
const LEFT = 48;
const BOTTOM = 20;

// series: [{ name, style, points: [[seconds, value], ...] }]
export function lines(label, series) {
  const points = series.flatMap((each) => each.points);
  const picture = svg("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
  if (points.length === 0) {
    picture.setAttribute("aria-label", `${label}: nothing yet`);
    picture.append(svg("text", { x: WIDTH / 2, y: HEIGHT / 2, "text-anchor": "middle" }, "nothing yet"));
    return picture;
  }
  const first = Math.min(...points.map(([time]) => time));
  const last = Math.max(...points.map(([time]) => time), first + 1);
  const low = Math.min(0, ...points.map(([, value]) => value));
  const high = Math.max(...points.map(([, value]) => value), low + 1);
  const x = (time) => LEFT + ((time - first) / (last - first)) * (WIDTH - LEFT - 8);
  const y = (value) => 10 + (1 - (value - low) / (high - low)) * (HEIGHT - BOTTOM - 14);
  for (const value of [low, (low + high) / 2, high]) {
    picture.append(svg("line", { class: "grid", x1: LEFT, x2: WIDTH - 8, y1: y(value), y2: y(value) }));
    picture.append(svg("text", { x: LEFT - 5, y: y(value) + 4, "text-anchor": "end" }, count(value)));
  }
  picture.append(svg("text", { x: LEFT, y: HEIGHT - 5 }, clock(first)));
  picture.append(svg("text", { x: WIDTH - 8, y: HEIGHT - 5, "text-anchor": "end" }, clock(last)));
  for (const each of series) {
    const drawn = each.points.map(([time, value], at) => `${at ? "L" : "M"}${x(time).toFixed(1)} ${y(value).toFixed(1)}`);
    picture.append(svg("path", { class: each.style, d: drawn.join("") || "M0 0" }));
  }
  const told = series.filter((each) => each.points.length)
    .map((each) => `${each.name} ${count(each.points[each.points.length - 1][1])} now`);
  picture.setAttribute("aria-label", `${label}: ${told.join(", ")}`);
  return picture;
}

// places: Map of name -> [latitude, longitude]; land: rings of [longitude, latitude]
export function map(label, places, land) {
  const all = [...places.values()];
  const wide = (values, least) => {
    const low = Math.min(...values);
    const high = Math.max(...values);
    const more = Math.max((least - (high - low)) / 2, (high - low) * 0.08);
    return [low - more, high + more];
  };
  const [south, north] = wide(all.map(([latitude]) => latitude), 18);
  const [west, east] = wide(all.map(([, longitude]) => longitude), 40);
  // True to shape in the middle of what is shown.
  const shrink = Math.cos((((south + north) / 2) * Math.PI) / 180) || 1;
  const scale = Math.min(WIDTH / ((east - west) * shrink), 360 / (north - south));
  const height = Math.max(140, (north - south) * scale);
  const offset = (WIDTH - (east - west) * shrink * scale) / 2;
  const x = (longitude) => offset + (longitude - west) * shrink * scale;
  const y = (latitude) => (north - latitude) * scale;
  const picture = svg("svg", {
    class: "chart", viewBox: `0 0 ${WIDTH} ${height.toFixed(0)}`, role: "img",
    "aria-label": `${label}: ${places.size} places, the last one ${[...places.keys()].pop()}`,
  });
  const drawn = land.map((ring) =>
    `M${ring.map(([longitude, latitude]) => `${x(longitude).toFixed(1)} ${y(latitude).toFixed(1)}`).join("L")}Z`);
  picture.append(svg("path", { class: "land", d: drawn.join("") || "M0 0" }));
  for (const [name, [latitude, longitude]] of places) {
    const dot = svg("circle", { class: "dot", cx: x(longitude).toFixed(1), cy: y(latitude).toFixed(1), r: 4 });
    dot.append(svg("title", {}, name));
    picture.append(dot);
  }
  return picture;
}
