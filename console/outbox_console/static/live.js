/* The live parts: times in the reader's zone, and pages that are read again by themselves. */
"use strict";

const short = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const minutes = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const long = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });

/* The exact time, in UTC, stays in the title. */
function local(root) {
  const today = new Date().toDateString();
  for (const t of root.querySelectorAll("time[datetime]")) {
    const at = new Date(t.dateTime);
    if (!isNaN(at)) t.textContent = (t.className === "hm" ? minutes : at.toDateString() === today ? short : long).format(at);
  }
}

/* A page is left alone while its reader writes, chooses or looks elsewhere. */
function busy(main) {
  const at = document.activeElement;
  return document.hidden || (at && main.contains(at) && /^(INPUT|SELECT|TEXTAREA)$/.test(at.tagName)) ||
    main.querySelector("input:checked") || String(getSelection());
}

let last = new Date();

async function again() {
  const main = document.getElementById("main");
  if (!main.dataset.live) return;
  if (!busy(main)) {
    try {
      const answer = await fetch(location.href, { headers: { "X-Live": "1" }, signal: AbortSignal.timeout(8000) });
      const read = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = read.getElementById("main");
      if (!fresh) throw new Error("no page");
      if (answer.redirected) { location.href = answer.url; return; }
      local(fresh);
      const focused = document.activeElement && main.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
      const opened = [...main.querySelectorAll("details[open][id]")].map(d => d.id);
      const notice = main.querySelector(".notice");
      main.replaceChildren(...fresh.childNodes);
      if (notice && !main.querySelector(".notice")) main.prepend(notice);
      for (const id of opened) document.getElementById(id)?.setAttribute("open", "");
      if (focused) [...main.querySelectorAll("a[href]")].find(a => a.getAttribute("href") === focused)?.focus();
      document.title = read.title;
      if (fresh.dataset.live) main.dataset.live = fresh.dataset.live; else delete main.dataset.live;
      last = new Date();
      document.getElementById("offline").hidden = true;
    } catch (error) {
      document.getElementById("offline-since").textContent = short.format(last);
      document.getElementById("offline").hidden = false;
    }
  }
  if (main.dataset.live) setTimeout(again, main.dataset.live * 1000);
}

local(document);
{
  const main = document.getElementById("main");
  if (main.dataset.live) setTimeout(again, main.dataset.live * 1000);
  const all = document.getElementById("all");
  if (all) all.addEventListener("change", () => {
    for (const box of document.querySelectorAll("input[name=pick]")) box.checked = all.checked;
  });
}
