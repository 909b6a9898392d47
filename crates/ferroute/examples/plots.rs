//! Draws the plots of docs/performance.md from the figures that `make bench` and `make compare` wrote: each as SVG for
//! light and for dark pages. Figures that were not measured are not drawn.
//!
//! ```text
//! cargo run -p ferroute --example plots -- docs/performance docs/images
//! ```

#![allow(clippy::print_stdout, reason = "it is an interactive program")]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail, ensure};
use plotters::{
    coord::{
        CoordTranslate,
        ranged1d::{AsRangedCoord, ValueFormatter},
    },
    prelude::*,
};

fn main() -> anyhow::Result<()> {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [figures, images] = arguments.as_slice() else { bail!("arguments: DIRECTORY-WITH-CSV DIRECTORY-FOR-SVG") };
    fs::create_dir_all(images).with_context(|| format!("cannot create {}", images.display()))?;
    let table = |name: &str| {
        let path = figures.join(name);
        path.exists().then(|| Table::read(&path)).transpose()
    };
    const UPPER: SeriesLabelPosition = SeriesLabelPosition::UpperLeft;
    const MIDDLE: SeriesLabelPosition = SeriesLabelPosition::MiddleLeft;
    for theme in [LIGHT, DARK] {
        let path = |name: &str| images.join(format!("{name}-{}.svg", theme.name));
        let draw = |name: &str, title: &str, lines: &[Line], y_unit: fn(f64) -> String, legend| {
            Plot { title, lines, x: ("Services with ten endpoints", count), y_unit, legend }
                .draw_by_services(&path(name), theme)
        };
        if let Some(dataplane) = table("dataplane.csv")? {
            draw("first-sync", "First sync", &by_mode(&dataplane, &[("first_s", "")])?, seconds, UPPER)?;
            let change = by_mode(&dataplane, &[("endpoint_p50_s", " p50"), ("endpoint_p99_s", " p99")])?;
            draw("change", "One endpoint replaced", &change, seconds, MIDDLE)?;
            draw("memory", "Memory", &by_mode(&dataplane, &[("memory_bytes", "")])?, bytes, UPPER)?;
        }
        if let Some(packets) = table("packets.csv")? {
            draw_packets(&path("packets"), theme, &packets)?;
        }
        if let Some(switch) = table("switch.csv")? {
            let figures =
                [("answered", "Connections answered, in each tenth of a second"), ("failed", "Connections failed")];
            draw_course(&path("switch"), theme, &switch, ("mode", "began_s"), &figures)?;
        }
        if let Some(relists) = table("relists.csv")? {
            let figures =
                [("lists", "Lists per second"), ("open", "Lists open at once"), ("kilobytes", "kB per second")];
            draw_course(&path("relists"), theme, &relists, ("event", "second"), &figures)?;
        }
        if let Some(compare) = table("compare.csv")? {
            draw(
                "compare-first-sync",
                "From start to traffic",
                &by_mode(&compare, &[("first_s", "")])?,
                seconds,
                UPPER,
            )?;
        }
        let latencies = table("latency.csv")?.map(|table| latencies(&table)).transpose()?;
        for ((mode, rate), lines) in latencies.unwrap_or_default() {
            let title = format!("From the API server to traffic, {mode} mode, {rate} changes per second");
            let x: (_, fn(f64) -> String) = ("time until the first connection", seconds);
            Plot { title: &title, lines: &lines, x, y_unit: percent, legend: SeriesLabelPosition::UpperMiddle }.draw(
                &path(&format!("latency-{mode}-{rate}")),
                theme,
                0.0..100.0,
                false,
            )?;
        }
        if let Some(balancing) = table("balancing.csv")? {
            let draw = |name: &str, title: &str, column: &str, y_unit: fn(f64) -> String| {
                let lines = &by_size(&balancing, column)?;
                let most = lines.iter().flat_map(|line| &line.points).fold(0.0, |most: f64, point| most.max(point.1));
                Plot { title, lines, x: ("endpoints", count), y_unit, legend: UPPER }.draw(
                    &path(name),
                    theme,
                    0.0..most * 1.1,
                    true,
                )
            };
            let title = "Largest share of an endpoint, above the mean";
            draw("balancing-shares", title, "largest_over_mean_percent", percent)?;
            let title = "Clients that move when one endpoint leaves, compared with its own";
            draw("balancing-moves", title, "moved_over_own", times)?;
        }
    }
    println!("wrote plots to {}", images.display());
    Ok(())
}

/// The rows of a file, by the names of its columns.
struct Table(Vec<BTreeMap<String, String>>);

impl Table {
    fn read(path: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut lines = text.lines().filter(|line| !line.starts_with('#'));
        let names: Vec<&str> = lines.next().context("the file is empty")?.split(',').collect();
        let row = |line: &str| {
            let values: Vec<&str> = line.split(',').collect();
            ensure!(values.len() == names.len(), "{}: {line:?} does not have {} values", path.display(), names.len());
            Ok(names.iter().zip(values).map(|(name, value)| ((*name).to_owned(), value.to_owned())).collect())
        };
        Ok(Self(lines.map(row).collect::<anyhow::Result<_>>()?))
    }
}

/// Returns the number in a column; `None` if it was not measured.
fn number(row: &BTreeMap<String, String>, name: &str) -> anyhow::Result<Option<f64>> {
    let text = row.get(name).with_context(|| format!("there is no column {name}"))?;
    Ok(if text.is_empty() { None } else { Some(text.parse().with_context(|| format!("{name}: {text:?}"))?) })
}

/// A line: its name and its points.
struct Line {
    name: String,
    points: Vec<(f64, f64)>,
}

/// Returns a line over the number of Services for each mode, each proxy and each column, with a suffix for the names.
/// Clusters with another number of endpoints per Service are left out.
fn by_mode(table: &Table, columns: &[(&str, &str)]) -> anyhow::Result<Vec<Line>> {
    let mut lines: Vec<Line> = Vec::new();
    for row in &table.0 {
        if number(row, "endpoints")? != Some(10.0) {
            continue;
        }
        for (column, suffix) in columns {
            let (Some(services), Some(value)) = (number(row, "services")?, number(row, column)?) else { continue };
            let mode = row.get("mode").context("there is no column mode")?;
            let name = match row.get("proxy") {
                Some(proxy) => format!("{proxy}, {mode}{suffix}"),
                None => format!("{mode}{suffix}"),
            };
            match lines.iter_mut().find(|line| line.name == name) {
                Some(line) => line.points.push((services, value)),
                None => lines.push(Line { name, points: vec![(services, value)] }),
            }
        }
    }
    Ok(lines)
}

/// Returns a line over the number of endpoints for each size of hash tables.
fn by_size(table: &Table, column: &str) -> anyhow::Result<Vec<Line>> {
    let mut lines: Vec<Line> = Vec::new();
    for row in &table.0 {
        let (Some(size), Some(endpoints), Some(value)) =
            (number(row, "positions")?, number(row, "endpoints")?, number(row, column)?)
        else {
            continue;
        };
        let table = row.get("table").context("there is no column table")?;
        let name = format!("{table}, {} positions", count(size));
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push((endpoints, value)),
            None => lines.push(Line { name, points: vec![(endpoints, value)] }),
        }
    }
    Ok(lines)
}

/// Percentage of changes over the time that they took, for each mode and each number of changes per second.
type Latencies = BTreeMap<(String, String), Vec<Line>>;

/// Returns a line for each proxy and each cluster.
fn latencies(table: &Table) -> anyhow::Result<Latencies> {
    let mut plots = Latencies::new();
    for row in &table.0 {
        let text = |name: &str| row.get(name).with_context(|| format!("there is no column {name}"));
        let services = number(row, "services")?.unwrap_or_default();
        let name = format!("{}, {}×{}", text("proxy")?, count(services), text("endpoints")?);
        let lines = plots.entry((text("mode")?.clone(), text("rate")?.clone())).or_default();
        let (Some(latency), Some(percent)) = (number(row, "latency_s")?, number(row, "percent")?) else { continue };
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push((latency, percent)),
            None => lines.push(Line { name, points: vec![(latency, percent)] }),
        }
    }
    Ok(plots)
}

/// The colours of a page.
#[derive(Clone, Copy)]
struct Theme {
    name: &'static str,
    paper: RGBColor,
    text: RGBColor,
    grid: RGBColor,
    /// Colours that people with red-green colour blindness can distinguish, too.
    lines: [RGBColor; 6],
}

const LIGHT: Theme = Theme {
    name: "light",
    paper: RGBColor(255, 255, 255),
    text: RGBColor(40, 46, 58),
    grid: RGBColor(224, 227, 233),
    lines: [
        RGBColor(61, 79, 209),
        RGBColor(196, 98, 16),
        RGBColor(0, 122, 102),
        RGBColor(160, 60, 140),
        RGBColor(96, 104, 120),
        RGBColor(140, 110, 0),
    ],
};

const DARK: Theme = Theme {
    name: "dark",
    paper: RGBColor(15, 18, 24),
    text: RGBColor(214, 219, 229),
    grid: RGBColor(48, 55, 68),
    lines: [
        RGBColor(154, 168, 255),
        RGBColor(255, 170, 92),
        RGBColor(92, 214, 186),
        RGBColor(232, 150, 214),
        RGBColor(160, 170, 188),
        RGBColor(224, 198, 96),
    ],
};

const SIZE: (u32, u32) = (760, 420);
const FONT: &str = "sans-serif";

/// Lines over a logarithmic axis.
struct Plot<'a> {
    title: &'a str,
    lines: &'a [Line],
    /// The title and the unit of the axis.
    x: (&'a str, fn(f64) -> String),
    y_unit: fn(f64) -> String,
    legend: SeriesLabelPosition,
}

impl Plot<'_> {
    /// Draws figures by the number of Services, as points on two logarithmic axes.
    fn draw_by_services(&self, path: &Path, theme: Theme) -> anyhow::Result<()> {
        ensure!(self.lines.iter().any(|line| !line.points.is_empty()), "{}: there are no figures", self.title);
        let (bottom, top) = decades(self.lines, |point| point.1);
        self.draw(path, theme, (bottom..top).log_scale(), true)
    }

    fn draw<Y>(&self, path: &Path, theme: Theme, y: Y, has_points: bool) -> anyhow::Result<()>
    where
        Y: AsRangedCoord<Value = f64>,
        Y::CoordDescType: ValueFormatter<f64>,
    {
        let (left, right) = decades(self.lines, |point| point.0);
        let root = SVGBackend::new(path, SIZE).into_drawing_area();
        root.fill(&theme.paper)?;
        let text = |size: u32| (FONT, size).into_font().color(&theme.text);
        let mut chart = ChartBuilder::on(&root)
            .margin(16)
            .margin_right(44)
            .caption(self.title, text(20))
            .x_label_area_size(48)
            .y_label_area_size(72)
            .build_cartesian_2d((left..right).log_scale(), y)?;
        let (x_title, x_unit) = self.x;
        chart
            .configure_mesh()
            .bold_line_style(theme.grid)
            .light_line_style(TRANSPARENT)
            .axis_style(theme.grid)
            .label_style(text(14))
            .axis_desc_style(text(14))
            .x_desc(x_title)
            .x_label_formatter(&|value| x_unit(*value))
            .y_label_formatter(&|value| (self.y_unit)(*value))
            .draw()?;
        for (line, colour) in self.lines.iter().zip(theme.lines.iter().cycle()) {
            let style = ShapeStyle { color: colour.to_rgba(), filled: true, stroke_width: 3 };
            chart
                .draw_series(LineSeries::new(line.points.iter().copied(), style))?
                .label(line.name.as_str())
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 24, y)], style));
            let points = line.points.iter().filter(|_| has_points);
            chart.draw_series(points.map(|point| Circle::new(*point, 5, style)))?;
        }
        draw_legend(&mut chart, self.legend.clone(), theme)?;
        root.present()?;
        Ok(())
    }
}

/// Returns the powers of ten around all values.
fn decades(lines: &[Line], value: fn(&(f64, f64)) -> f64) -> (f64, f64) {
    let values = || lines.iter().flat_map(|line| &line.points).map(value);
    let (least, most) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
    (10_f64.powf(least.log10().floor()), 10_f64.powf(most.log10().ceil()))
}

/// Draws the cost of a packet as bars: the first packet of a connection and later ones, by kind.
fn draw_packets(path: &Path, theme: Theme, table: &Table) -> anyhow::Result<()> {
    let rows: Vec<_> = table.0.iter().filter(|row| row.get("mode").is_some_and(|mode| mode == "nftables")).collect();
    let least = rows.iter().filter_map(|row| number(row, "services").ok()?).fold(f64::INFINITY, f64::min);
    let mut bars = Vec::new();
    for row in rows {
        if number(row, "services")? != Some(least) {
            continue;
        }
        let kind = row.get("kind").context("there is no column kind")?.clone();
        bars.push((kind, number(row, "first_s")?.unwrap_or_default(), number(row, "later_s")?.unwrap_or_default()));
    }
    ensure!(!bars.is_empty(), "{}: there are no figures of nftables mode", path.display());
    let most = bars.iter().map(|(_, first, later)| first.max(*later)).fold(0.0, f64::max) * 1.15;
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&theme.paper)?;
    let text = |size: u32| (FONT, size).into_font().color(&theme.text);
    let mut chart = ChartBuilder::on(&root)
        .margin(16)
        .caption(format!("A packet through a node, nftables mode, {} Services", count(least)), text(20))
        .x_label_area_size(48)
        .y_label_area_size(210)
        .build_cartesian_2d(0.0..most, 0.0..f64::from(u32::try_from(bars.len())?))?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .bold_line_style(theme.grid)
        .light_line_style(TRANSPARENT)
        .axis_style(theme.grid)
        .label_style(text(14))
        .y_labels(0)
        .x_label_formatter(&|value| seconds(*value))
        .draw()?;
    let height = |index: usize| f64::from(u32::try_from(bars.len() - 1 - index).unwrap_or_default());
    for (part, name, (low, high)) in [(0, "first packet", (0.52, 0.86)), (1, "later packet", (0.14, 0.48))] {
        let colour = theme.lines[part];
        let bar = |(index, (_, first, later)): (usize, &(String, f64, f64))| {
            let value = if part == 0 { *first } else { *later };
            Rectangle::new([(0.0, height(index) + low), (value, height(index) + high)], colour.filled())
        };
        chart
            .draw_series(bars.iter().enumerate().map(bar))?
            .label(name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 20, y + 5)], colour.filled()));
    }
    for (index, (kind, ..)) in bars.iter().enumerate() {
        let (x, y) = chart.backend_coord(&(0.0, height(index) + 0.6));
        root.draw(&Text::new(kind.as_str(), (x - 200, y - 6), text(14)))?;
    }
    draw_legend(&mut chart, SeriesLabelPosition::UpperRight, theme)?;
    root.present()?;
    Ok(())
}

/// Draws the names of the lines or bars of a diagram.
fn draw_legend<'a, T: CoordTranslate>(
    chart: &mut ChartContext<'a, SVGBackend<'a>, T>,
    position: SeriesLabelPosition,
    theme: Theme,
) -> anyhow::Result<()> {
    chart
        .configure_series_labels()
        .position(position)
        .background_style(theme.paper.mix(0.9))
        .border_style(theme.grid)
        .label_font((FONT, 14).into_font().color(&theme.text))
        .draw()?;
    Ok(())
}

/// Draws figures over time: a diagram for each of them, with a line for each value of the first column. The second one has the time.
fn draw_course(
    path: &Path,
    theme: Theme,
    table: &Table,
    (name, time): (&str, &str),
    figures: &[(&str, &str)],
) -> anyhow::Result<()> {
    let height = u32::try_from(figures.len())? * SIZE.1 * 2 / 3;
    let root = SVGBackend::new(path, (SIZE.0, height)).into_drawing_area();
    root.fill(&theme.paper)?;
    let text = |size: u32| (FONT, size).into_font().color(&theme.text);
    for (index, area) in root.split_evenly((figures.len(), 1)).iter().enumerate() {
        let (column, title) = figures[index];
        let mut lines: Vec<Line> = Vec::new();
        for row in &table.0 {
            let name = row.get(name).with_context(|| format!("there is no column {name}"))?;
            let (Some(second), Some(value)) = (number(row, time)?, number(row, column)?) else { continue };
            match lines.iter_mut().find(|line| line.name == *name) {
                Some(line) => line.points.push((second, value)),
                None => lines.push(Line { name: name.clone(), points: vec![(second, value)] }),
            }
        }
        let largest =
            |value: fn(&(f64, f64)) -> f64| lines.iter().flat_map(|line| &line.points).map(value).fold(1.0, f64::max);
        let mut chart = ChartBuilder::on(area)
            .margin(16)
            .margin_right(44)
            .caption(title, text(18))
            .x_label_area_size(28)
            .y_label_area_size(72)
            .build_cartesian_2d(0.0..largest(|point| point.0), 0.0..largest(|point| point.1) * 1.1)?;
        chart
            .configure_mesh()
            .bold_line_style(theme.grid)
            .light_line_style(TRANSPARENT)
            .axis_style(theme.grid)
            .label_style(text(14))
            .x_label_formatter(&|value| seconds(*value))
            .y_label_formatter(&|value| count(*value))
            .draw()?;
        for (line, colour) in lines.iter().zip(theme.lines) {
            let style = ShapeStyle { color: colour.to_rgba(), filled: true, stroke_width: 2 };
            chart
                .draw_series(LineSeries::new(line.points.iter().copied(), style))?
                .label(line.name.as_str())
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 24, y)], style));
        }
        if index == 0 && lines.len() > 1 {
            draw_legend(&mut chart, SeriesLabelPosition::UpperRight, theme)?;
        }
    }
    root.present()?;
    Ok(())
}

fn seconds(value: f64) -> String {
    match value {
        value if value >= 1.0 => format!("{} s", trimmed(value)),
        value if value >= 1e-3 => format!("{} ms", trimmed(value * 1e3)),
        value if value > 0.0 => format!("{} µs", trimmed(value * 1e6)),
        _ => "0".to_owned(),
    }
}

fn bytes(value: f64) -> String {
    format!("{} MB", trimmed(value / 1e6))
}

fn count(value: f64) -> String {
    let digits = format!("{value:.0}");
    let first = digits.len() % 3;
    let groups = digits.as_bytes()[first..].chunks(3).map(|chunk| String::from_utf8_lossy(chunk).into_owned());
    let head = (first > 0).then(|| digits[..first].to_owned());
    head.into_iter().chain(groups).collect::<Vec<_>>().join(",")
}

/// Formats a number with at most one decimal digit.
fn trimmed(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or_else(|| text.clone(), str::to_owned)
}

fn percent(value: f64) -> String {
    format!("{value:.0} %")
}

fn times(value: f64) -> String {
    format!("{value:.1}×")
}
