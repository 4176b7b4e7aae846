"use strict";
(() => {
  const KEPT = 8; // unpacked chunks kept in memory
  const MOST_OPENED = 200; // questions opened by one click
  const chunks = new Map();

  function partsOf(chunk) {
    if (!chunks.has(chunk)) {
      const packed = atob(document.getElementById(`chunk-${chunk}`).textContent);
      const bytes = Uint8Array.from(packed, (char) => char.charCodeAt(0));
      const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
      chunks.set(chunk, new Response(stream).text().then((text) => text.split("\0")));
      if (chunks.size > KEPT) chunks.delete(chunks.keys().next().value);
    }
    return chunks.get(chunk);
  }

  async function fill(body) {
    if (body === null || body.dataset.chunk === undefined) return;
    const { chunk, part } = body.dataset;
    delete body.dataset.chunk;
    try {
      body.innerHTML = (await partsOf(chunk))[part]; // escaped when the page was written
    } catch (error) {
      body.textContent = `This part cannot be unpacked (${error}): a browser of 2023 or later can.`;
    }
    watchScrolling(body);
  }

  function watchScrolling(within) {
    for (const box of within.querySelectorAll(".scroll")) {
      if (box.scrollWidth <= box.clientWidth) continue;
      box.tabIndex = 0; // scrolled by the arrow keys
      box.setAttribute("role", "group");
      box.setAttribute("aria-label", "Wide table: scrolls sideways");
      if (box.previousElementSibling?.className === "wide") continue;
      box.insertAdjacentHTML("beforebegin", '<p class="wide" aria-hidden="true">Wide table: scroll sideways →</p>');
    }
  }

  function show(id) {
    const target = document.getElementById(id);
    if (target === null) return;
    const row = target.closest("details.q");
    if (row !== null && row.hidden) reset();
    for (let section = target.closest("details"); section !== null; section = section.parentElement.closest("details")) section.open = true;
    fill(target.matches(".body") ? target : null).then(() => (row ?? target).scrollIntoView());
  }

  document.addEventListener("toggle", (event) => {
    if (event.target.open) fill(event.target.querySelector(":scope > .body"));
  }, true);

  let folded = [];
  window.addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details.q[open] details:not([open])")];
    for (const section of folded) section.open = true;
  });
  window.addEventListener("afterprint", () => {
    for (const section of folded) section.open = false;
  });

  const form = document.getElementById("controls");
  const list = document.getElementById("questions");
  const rows = list === null ? [] : [...list.querySelectorAll(":scope > details.q")];
  let texts = null;

  function apply() {
    texts ??= rows.map((row) => row.firstElementChild.textContent.toLowerCase());
    const words = form.elements.text.value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = [...form.querySelectorAll("select")].filter((select) => select.name !== "sort" && select.value !== "");
    let n = 0;
    rows.forEach((row, number) => {
      const fits = words.every((word) => texts[number].includes(word))
        && wanted.every((select) => `|${row.dataset[select.name]}|`.includes(`|${select.value}|`));
      row.hidden = !fits;
      n += fits;
    });
    form.querySelector("output").textContent = `${n.toLocaleString("en")} of ${rows.length.toLocaleString("en")} ${list.dataset.noun ?? "question"}${rows.length === 1 ? "" : "s"}`;
    form.elements.open.textContent = n > MOST_OPENED ? `Open the first ${MOST_OPENED}` : "Open these";
  }

  function sort() {
    const [name, sign] = form.elements.sort.value.split(":");
    const order = [...rows];
    if (sign !== undefined) order.sort((a, b) => Number(sign) * (a.dataset[name] - b.dataset[name]));
    list.append(...order);
  }

  function reset(values = new URLSearchParams()) {
    for (const control of form.querySelectorAll("select, input[type=search]")) {
      control.value = values.get(control.name) ?? "";
      if (control.selectedIndex === -1) control.selectedIndex = 0;
    }
    sort();
    apply();
  }

  function follow() {
    const hash = location.hash.slice(1);
    if (form !== null && hash.startsWith("show:")) {
      reset(new URLSearchParams(hash.slice("show:".length)));
      form.scrollIntoView();
    } else if (hash !== "") {
      show(decodeURIComponent(hash));
    }
  }

  function step(by) {
    const shown = [...list.children].filter((row) => !row.hidden);
    const current = shown.findIndex((row) => row.contains(document.activeElement));
    const next = shown[current === -1 ? 0 : current + by];
    if (next === undefined) return;
    next.firstElementChild.focus({ preventScroll: true });
    next.scrollIntoView({ block: "nearest" });
  }

  if (form !== null) {
    form.hidden = false;
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", (event) => (event.target.name === "sort" ? sort() : apply()));
    form.elements.open.addEventListener("click", () => {
      const shown = [...list.children].filter((row) => !row.hidden).slice(0, MOST_OPENED);
      for (const row of shown) row.open = true;
    });
    form.elements.close.addEventListener("click", () => {
      for (const row of rows) row.open = false;
    });
    document.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "Escape" && event.target === form.elements.text) reset();
      if (!form.elements.keys.checked || event.target.matches("input:not([type=checkbox]), select")) return;
      if (event.key === "/") {
        event.preventDefault();
        form.elements.text.focus();
      } else if (event.key === "j" || event.key === "k") {
        step(event.key === "j" ? 1 : -1);
      }
    });
    apply();
  }
  watchScrolling(document);
  window.addEventListener("resize", () => watchScrolling(document));
  window.addEventListener("hashchange", follow);
  follow();
})();
