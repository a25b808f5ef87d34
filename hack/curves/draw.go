package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"image/color"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Chart has one line or more over the same x axis.
type Chart struct {
	Title string `json:"title"`
	// X and Y are the labels of the axes.
	X     string `json:"x"`
	Y     string `json:"y"`
	Lines []Line `json:"lines"`
}

// Line is one line, from left to right.
type Line struct {
	// Name is in the legend if there are several lines.
	Name   string  `json:"name"`
	Points []Point `json:"points"`
}

// Point is a point of a line.
type Point struct {
	X float64 `json:"x"`
	Y float64 `json:"y"`
}

const (
	columns = 2
	width   = 380
	height  = 240
	gap     = 18
)

// Draw draws the charts as an SVG with two columns. The same charts give the same bytes.
func Draw(charts []Chart) ([]byte, error) {
	if len(charts) == 0 {
		return nil, errors.New("there are no charts")
	}
	rows := (len(charts) + columns - 1) / columns
	canvas := vgsvg.New(columns*width, vg.Length(rows*height))
	if err := drawOn(draw.New(canvas), charts, rows); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if _, err := canvas.WriteTo(&out); err != nil {
		return nil, err
	}
	// The layout uses the widths of this font. The other fonts have the same widths, for viewers without it.
	const font = "font-family:Liberation Sans"
	return bytes.ReplaceAll(out.Bytes(), []byte(font), []byte(font+",Arial,Helvetica,sans-serif")), nil
}

func drawOn(area draw.Canvas, charts []Chart, rows int) error {
	area.SetColor(color.White)
	area.Fill(area.Rectangle.Path())
	tiles := draw.Tiles{Rows: rows, Cols: columns, PadX: gap, PadY: gap, PadTop: gap / 2, PadBottom: gap / 2, PadLeft: gap / 2, PadRight: gap}
	for n, chart := range charts {
		drawn, err := chart.plot()
		if err != nil {
			return fmt.Errorf("chart %q: %w", chart.Title, err)
		}
		drawn.Draw(tiles.At(area, n%columns, n/columns))
	}
	return nil
}

func (c Chart) plot() (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = c.Title, c.X, c.Y
	sans(p)
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.TickerFunc(ticks), plot.TickerFunc(ticks)
	p.X.Min, p.Y.Min = 0, 0 // with other origins, a flat curve looks steep
	p.Add(grid())
	for n, line := range c.Lines {
		if err := line.add(p, palette()[n%len(palette())], len(c.Lines) > 1); err != nil {
			return nil, err
		}
	}
	const air = 1.15
	p.Y.Max = cmp.Or(p.Y.Max*air, 1)
	return p, nil
}

// ticks are the ticks of the library with shorter labels.
func ticks(least, most float64) []plot.Tick {
	all := plot.DefaultTicks{}.Ticks(least, most)
	for i := range all {
		if !all[i].IsMinor() {
			all[i].Label = strconv.FormatFloat(all[i].Value, 'f', -1, 64)
		}
	}
	return all
}

// sans uses a font for which every viewer has a replacement.
func sans(p *plot.Plot) {
	const title, label, tick = 12, 10, 9
	set := func(f *font.Font, size font.Length) { f.Variant, f.Size = "Sans", size }
	set(&p.Title.TextStyle.Font, title)
	p.Title.Padding = 6
	set(&p.X.Label.TextStyle.Font, label)
	set(&p.Y.Label.TextStyle.Font, label)
	set(&p.X.Tick.Label.Font, tick)
	set(&p.Y.Tick.Label.Font, tick)
	set(&p.Legend.TextStyle.Font, tick)
}

func grid() *plotter.Grid {
	g := plotter.NewGrid()
	g.Vertical.Color, g.Horizontal.Color = nil, color.Gray{Y: 0xdd}
	return g
}

// palette has colours that people with colour blindness can distinguish.
func palette() []color.Color {
	return []color.Color{
		color.RGBA{R: 0x00, G: 0x5a, B: 0xb5, A: 0xff}, color.RGBA{R: 0xdc, G: 0x6b, B: 0x00, A: 0xff}, color.RGBA{R: 0x40, G: 0x40, B: 0x40, A: 0xff},
	}
}

func (l Line) add(p *plot.Plot, in color.Color, named bool) error {
	if len(l.Points) == 0 {
		return fmt.Errorf("line %q has no points", l.Name)
	}
	points := make(plotter.XYs, 0, len(l.Points))
	for _, at := range l.Points {
		points = append(points, plotter.XY{X: at.X, Y: at.Y})
	}
	if !slices.IsSortedFunc(points, func(a, b plotter.XY) int { return int(a.X - b.X) }) {
		return fmt.Errorf("line %q does not go from left to right", l.Name)
	}
	line, dots, err := plotter.NewLinePoints(points)
	if err != nil {
		return fmt.Errorf("line %q: %w", l.Name, err)
	}
	line.Color, line.Width = in, 1.6
	dots.Shape, dots.Color, dots.Radius = draw.CircleGlyph{}, in, 2.6
	p.Add(line, dots)
	if named {
		p.Legend.Add(l.Name, line, dots)
	}
	return nil
}
