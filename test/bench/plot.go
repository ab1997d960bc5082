// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// plotted draws a result: a box a side, over the quartiles, with the median and all that lies outside.
func plotted(r *Result) ([]byte, error) {
	var sides []*SideResult
	most := 0.0
	for i := range r.Sides {
		if r.Sides[i].Unit == r.Unit {
			sides = append(sides, &r.Sides[i])
			most = math.Max(most, r.Sides[i].Summary.Max)
		}
	}
	slices.Reverse(sides) // the first on top
	p := plot.New()
	p.Title.Text = r.Title
	p.X.Min = 0
	factor, unit := axis(most, r.Unit)
	p.X.Label.Text = unit
	var names []string
	for i, s := range sides {
		values := make(plotter.Values, 0, s.Summary.N)
		for _, v := range s.all() {
			values = append(values, v/factor)
		}
		box, err := plotter.NewBoxPlot(vg.Points(18), float64(i), values)
		if err != nil {
			return nil, err
		}
		box.Horizontal = true
		box.FillColor = color.RGBA{R: 0x9e, G: 0xc5, B: 0xe8, A: 0xff}
		p.Add(box)
		names = append(names, fmt.Sprintf("%s: %s", s.Name, Format(s.Summary.Median, s.Unit)))
	}
	p.X.Min = 0
	p.Add(plotter.NewGrid())
	p.NominalY(names...)

	canvas := vgsvg.New(vg.Points(640), vg.Points(float64(90+34*len(sides))))
	p.Draw(draw.New(canvas))
	var b bytes.Buffer
	if _, err := canvas.WriteTo(&b); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// axis returns by what values are divided for an axis that reaches to most, and the name of what remains.
func axis(most float64, unit string) (float64, string) {
	switch unit {
	case "s", "B", "bit/s", "B/s":
		for _, p := range prefixes {
			if (p.factor <= 1 || unit != "s") && most >= p.factor {
				return p.factor, p.sign + unit
			}
		}
	}
	return 1, unit
}
