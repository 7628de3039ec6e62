{
  const form = document.querySelector(".filters");

  const value = (row, name) => row.dataset[name] ?? row.closest("section").dataset[name] ?? "";

  function start() {
    const rows = [...document.querySelectorAll(".results tbody tr")];
    const words = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
    const lists = [...form.querySelectorAll("select")].filter((list) => list.name !== "round" || !list.value);
    const other = form.querySelector("select[name=round]");

    const mentions = (row) => form.words.value.toLowerCase().split(/\s+/).every((word) => words.get(row).includes(word));
    const fits = (row, list) => !list.value || value(row, list.name) === list.value;

    function query() {
      const wanted = new URLSearchParams();
      for (const { name, value } of [...lists, form.words]) if (value) wanted.set(name, value);
      return wanted.size ? `?${wanted}` : "";
    }

    function apply() {
      for (const row of rows) row.hidden = !(mentions(row) && lists.every((list) => fits(row, list)));
      for (const list of lists) {
        const others = lists.filter((each) => each !== list);
        const left = new Set(rows.filter((row) => mentions(row) && others.every((each) => fits(row, each))).map((row) => value(row, list.name)));
        for (const option of list.options) option.disabled = option.value !== "" && !option.selected && !left.has(option.value);
      }
      for (const section of document.querySelectorAll(".results")) {
        section.hidden = !section.querySelector("tbody tr:not([hidden])");
        const link = document.querySelector(`.tables a[href="#${section.id}"]`);
        if (link) link.hidden = section.hidden;
      }
      const shown = rows.filter((row) => !row.hidden).length;
      form.querySelector("output").textContent = `${shown} of ${rows.length} results`;
    }

    function change() {
      apply();
      history.replaceState(null, "", query() || location.pathname);
    }

    const stated = new URLSearchParams(location.search);
    for (const list of lists) {
      const known = [...list.options].some((option) => option.value === stated.get(list.name));
      list.value = known ? stated.get(list.name) : "";
    }
    form.words.value = stated.get("words") ?? "";
    form.hidden = false;
    form.addEventListener("submit", (event) => event.preventDefault());
    form.querySelector("button").addEventListener("click", () => {
      for (const control of [...lists, form.words]) control.value = "";
      change();
    });
    form.addEventListener("input", (event) => {
      if (event.target === other && !lists.includes(other)) location.href = `${other.value}${query()}`;
      else change();
    });
    apply();
    // The rows above the one that the URL names may have gone.
    document.getElementById(location.hash.slice(1))?.scrollIntoView({ block: "center" });
  }

  if (form) start();
}
