"use strict";
// Draws the curves from the numbers in #data, and wires the buttons. State lives here; a change draws again.
(() => {
  const { tasks = [], scores = [], targets = [], budgets = [] } = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const PALETTES = {
    light: ["#3b4252", "#1f6feb", "#d9480f", "#2b8a3e", "#8a3ffc", "#b8860b", "#c2255c", "#0b7285"],
    dark: ["#c3cad5", "#6ea8fe", "#ff9a5c", "#69db7c", "#c4a1ff", "#f0c24b", "#ff8fb1", "#4fd1e0"],
  };
  const DASHES = ["solid", "dash", "dashdot", "longdash"]; // tells groups apart once colours repeat
  const UNFINISHED = "dot";
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const narrow = window.matchMedia("(max-width: 40rem)");
  const touch = window.matchMedia("(pointer: coarse)").matches;
  const state = tasks.map(() => ({ mode: "mean", bytes: "uplink", hidden: new Set() }));

  // Plotly reads a little HTML in texts; names come from configs and are to be read as they are.
  const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const theme = () => root.dataset.theme;
  const colourOf = (index, name) => PALETTES[name][index % PALETTES[name].length];
  const transparent = (hex) => hex + "2e";

  // The score of a task is an accuracy, a share, or another metric, a number.
  const isShare = (task, quantity) => quantity === "accuracy" && scores[task] === "accuracy";

  function hover(share, axis, withSpread) {
    const value = share ? "%{y:.1%}" : "%{y:.4g}";
    const spread = withSpread ? (share ? " ± %{customdata[2]:.1%}" : " ± %{customdata[2]:.2g}") : "";
    const where = axis === "rounds" ? "%{x:,} rounds, %{customdata[1]:.3s}B" : "%{x:.3s}B, %{customdata[0]:,} rounds";
    return `%{fullData.name}<br><b>${value}</b>${spread}<br>${where}<extra></extra>`;
  }

  function line(curve, name, colour, dash, width, share, axis, bytes) {
    const spread = curve.sd.some((value) => value !== null);
    return {
      type: "scatter", mode: curve.mean.length > 1 ? "lines" : "markers", name: escaped(name),
      x: axis === "rounds" ? curve.rounds : curve[bytes], y: curve.mean,
      customdata: curve.rounds.map((rounds, i) => [rounds, curve[bytes][i], curve.sd[i]]),
      line: { color: colour, width, dash }, marker: { color: colour }, hovertemplate: hover(share, axis, spread),
    };
  }

  function band(curve, colour, axis, bytes) {
    const x = axis === "rounds" ? curve.rounds : curve[bytes];
    const edge = (sign) => ({
      type: "scatter", mode: "lines", x, y: curve.mean.map((value, i) => value + sign * (curve.sd[i] ?? 0)),
      line: { width: 0 }, hoverinfo: "skip", showlegend: false,
    });
    return [edge(-1), { ...edge(1), fill: "tonexty", fillcolor: transparent(colour) }];
  }

  function traces(task, quantity, axis, themeName) {
    const { mode, bytes, hidden } = state[task], share = isShare(task, quantity);
    const bands = [], lines = [];
    tasks[task].forEach((group, index) => {
      if (hidden.has(index)) return;
      const colour = colourOf(index, themeName);
      const dash = DASHES[Math.floor(index / PALETTES[themeName].length) % DASHES.length];
      const single = (run) =>
        line(run[quantity], `${group.name}, seed ${run.seed}${run.finished ? "" : ", unfinished"}`, colour,
          run.finished ? dash : UNFINISHED, 1.5, share, axis, bytes);
      if (mode === "seeds") {
        lines.push(...group.runs.map(single));
        return;
      }
      const mean = group.mean[quantity];
      if (mean.sd.some((value) => value !== null)) bands.push(...band(mean, colour, axis, bytes));
      const style = group.finished ? dash : UNFINISHED;
      lines.push(line(mean, group.finished ? group.name : `${group.name}, unfinished`, colour, style, 2.2, share, axis, bytes));
      if (group.finished) lines.push(...group.runs.filter((run) => !run.finished).map(single));
    });
    return [...bands, ...lines];
  }

  const inkOf = (themeName) => (themeName === "dark" ? "#e6e9ed" : "#1b1f24");
  const mutedOf = (themeName) => (themeName === "dark" ? "#9aa4b0" : "#5b6470");

  function axisStyle(themeName) {
    const grid = themeName === "dark" ? "#30363e" : "#e6e9ee";
    return { gridcolor: grid, linecolor: grid, zeroline: false, color: inkOf(themeName), automargin: true };
  }

  function common(themeName) {
    return {
      dragmode: touch ? false : "zoom", // a finger scrolls the page
      hovermode: "closest", font: { color: inkOf(themeName), size: 12, family: "system-ui, sans-serif" },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 10, r: 16, t: 34, b: 10 },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: mutedOf(themeName), activecolor: inkOf(themeName) },
    };
  }

  function level(y, text, muted) { // a dotted line across the plot
    return [
      { type: "line", xref: "paper", x0: 0, x1: 1, y0: y, y1: y, line: { color: muted, width: 1, dash: "dot" } },
      {
        xref: "paper", x: 0, y, xanchor: "left", yanchor: "bottom", showarrow: false, text, font: { size: 11, color: muted },
      },
    ];
  }

  // A figure that stands in the page: traces with a number for a colour, axes, and levels.
  function figureOf(plot, themeName) {
    const { traces, x, y, levels } = JSON.parse(plot.dataset.figure);
    const marks = levels.map((one) => level(one.y, escaped(one.text), mutedOf(themeName)));
    return [
      traces.map(({ colour, ...trace }) => ({
        ...trace, name: escaped(trace.name), x: trace.x.map((value) => (typeof value === "string" ? escaped(value) : value)),
        line: { ...trace.line, color: colourOf(colour, themeName) }, marker: { color: colourOf(colour, themeName) },
      })),
      {
        ...common(themeName), shapes: marks.map((mark) => mark[0]),
        annotations: marks.map((mark) => ({ ...mark[1], bgcolor: themeName === "dark" ? "#14171bcc" : "#ffffffcc" })),
        showlegend: true, legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom" },
        xaxis: { ...axisStyle(themeName), ...x }, yaxis: { ...axisStyle(themeName), ...y },
      },
    ];
  }

  function layout(task, quantity, axis, themeName) {
    const muted = mutedOf(themeName);
    const bytes = state[task].bytes, share = isShare(task, quantity);
    const shapes = [], annotations = [];
    const dotted = { color: muted, width: 1, dash: "dot" };
    if (quantity === "accuracy")
      targets.forEach((target) => {
        const [shape, annotation] = level(target, share ? `${+(100 * target).toFixed(4)} %` : `${target}`, muted);
        shapes.push(shape);
        annotations.push(annotation);
      });
    if (axis === "bytes")
      budgets.forEach((budget) => {
        shapes.push({ type: "line", yref: "paper", y0: 0, y1: 1, x0: budget, x1: budget, line: dotted });
        annotations.push({ // on a log axis a shape is placed by its value, a text by the logarithm
          x: Math.log10(budget), yref: "paper", y: 1, xanchor: "center", yanchor: "bottom", showarrow: false,
          text: "budget", font: { size: 11, color: muted },
        });
      });
    const style = axisStyle(themeName);
    return {
      ...common(themeName), shapes, annotations, showlegend: false,
      uirevision: `${axis}-${bytes}`, // a zoom stays until its axis means something else
      xaxis: axis === "rounds"
        ? { ...style, title: { text: "rounds" }, rangemode: "tozero" }
        : {
          ...style, type: "log", exponentformat: "SI", ticksuffix: "B", nticks: narrow.matches ? 4 : 8,
          title: { text: `uplink of all clients, ${bytes === "uplink" ? "whole frames" : "payload"}` },
        },
      yaxis: { ...style, title: { text: quantity === "accuracy" ? escaped(`test ${scores[task]}`) : "training loss" },
        ...(share ? { tickformat: ".0%" } : {}) },
    };
  }

  const config = {
    displaylogo: false, responsive: true, displayModeBar: touch ? true : "hover",
    // Named one by one, and without a server: Plotly's own choice has a button that uploads the plot.
    modeBarButtons: [["zoom2d", "pan2d"], ["zoomIn2d", "zoomOut2d", "resetScale2d"]], plotlyServerURL: "",
  };
  const plots = [...document.querySelectorAll(".plot")];
  const partsOf = (plot) => [Number(plot.dataset.task), plot.dataset.quantity, plot.dataset.axis];
  const drawing = (plot, themeName) => plot.dataset.figure === undefined
    ? [traces(...partsOf(plot), themeName), layout(...partsOf(plot), themeName)] : figureOf(plot, themeName);

  function draw(task) {
    plots.filter((plot) => task === undefined || Number(plot.dataset.task) === task).forEach((plot) => {
      Plotly.react(plot, ...drawing(plot, theme()), config);
    });
  }

  function paint() { // the little lines beside names
    document.querySelectorAll(".swatch").forEach((swatch) => {
      const index = Number(swatch.dataset.group), colour = colourOf(index, theme());
      swatch.style.background = index < PALETTES.light.length
        ? colour : `repeating-linear-gradient(90deg, ${colour} 0 5px, transparent 5px 8px)`;
    });
  }

  function setTheme(name) {
    root.dataset.theme = name;
    document.querySelector("#theme span").textContent = name === "dark" ? "light" : "dark";
    paint();
    draw();
  }

  let chosen = false; // until somebody chooses, the page follows the system
  document.getElementById("theme").addEventListener("click", () => {
    chosen = true;
    setTheme(theme() === "dark" ? "light" : "dark");
  });
  dark.addEventListener("change", () => { if (!chosen) setTheme(dark.matches ? "dark" : "light"); });

  document.querySelectorAll(".legend").forEach((legend) => {
    const task = Number(legend.dataset.task);
    legend.querySelectorAll("button").forEach((button) => button.addEventListener("click", () => {
      const hidden = state[task].hidden, group = Number(button.dataset.group);
      if (!hidden.delete(group)) hidden.add(group);
      button.setAttribute("aria-pressed", String(!hidden.has(group)));
      draw(task);
    }));
  });

  document.querySelectorAll(".switch").forEach((choice) => {
    const task = Number(choice.dataset.task), buttons = [...choice.querySelectorAll("button")];
    buttons.forEach((button) => button.addEventListener("click", () => {
      state[task][choice.dataset.state] = button.value;
      buttons.forEach((one) => one.setAttribute("aria-pressed", String(one === button)));
      draw(task);
    }));
  });

  document.querySelectorAll("button.svg").forEach((button) => button.addEventListener("click", () => {
    const plot = button.closest("figure").querySelector(".plot");
    const title = plot.dataset.title;
    // For a paper: on white, with its legend, however the page looks.
    const [data, figure] = drawing(plot, "light");
    Object.assign(figure, {
      showlegend: true, legend: { orientation: "h", y: -0.2, traceorder: "normal" }, paper_bgcolor: "#ffffff", plot_bgcolor: "#ffffff",
      margin: { l: 60, r: 20, t: 20, b: 60 },
    });
    for (const axis of ["xaxis", "yaxis"]) // what was zoomed in on
      if (plot.layout[axis].autorange === false) figure[axis].range = plot.layout[axis].range;
    Plotly.downloadImage({ data, layout: figure },
      { format: "svg", width: 800, height: 520, filename: title.toLowerCase().replaceAll(" ", "-") });
  }));

  setTheme(dark.matches ? "dark" : "light");
})();
